"""The site of this folder: `make docs` writes it to out/docs/html, `make linkcheck` follows its links."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import itertools
import os
import re
import shutil
import sys
import tempfile
import textwrap
import types
from pathlib import Path
from typing import Any
from unittest import mock

import click
from docutils import nodes
from docutils.nodes import Element, Text
from latex2mathml.converter import convert as mathml
from sphinx.addnodes import index
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging
from sphinx_gallery.scrapers import figure_rst

from decomfl_lab import __version__
from decomfl_lab.cli.main import application, main
from theory.bounds.successors import ratios

HERE = Path(__file__).parent
CALLED = {
    "decomfl_lab": ("train", "load", "replay"),
    "decomfl_lab.laws": ("verify", "verify_update", "verify_identity", "pytest_suite"),
    "decomfl_lab.optim": ("MeZO",),
    "hessian": ("effective_rank", "refine", "spectral_density", "top_eigenvalues", "trace"),
    "theory": ("quadratic", "statement", "check", "largest_step", "tightness"),
}
"""What one calls first of each package: its page begins with these names."""
PUBLIC: dict[str, dict[str, list[str]]] = {}
"""The names of each package under their headings, in the order of its page."""
HOMES: dict[str, str] = {}
"""The public name of what a module within defines."""
for _package, _first in CALLED.items():
    _module = importlib.import_module(_package)
    _found = {name: getattr(_module, name) for name in sorted(_module.__all__)}
    PUBLIC[_package] = {"What one calls": [*_first], "Functions": [], "Classes": [], "Values": []}
    for _name, _each in _found.items():
        if _name not in _first and not isinstance(_each, types.ModuleType):
            _kind = "Classes" if inspect.isclass(_each) else "Functions" if callable(_each) else "Values"
            PUBLIC[_package][_kind].append(_name)
    for _name in itertools.chain(*PUBLIC[_package].values()):
        HOMES[f"{getattr(_found[_name], '__module__', '')}.{_name}"] = f"{_package}.{_name}"
LETTERS = {
    "κ": ("kappa", "effective rank"),
    "η": ("eta", "learning rate", "step size"),
    "μ": ("mu", "smoothing radius"),
    "ρ": ("rho",),
    "σ": ("sigma",),
}
"""Words by which the search finds a letter."""
ABOUT = {"kappa": "κ", "tutorials/kappa": "κ", "tuning": "η", "theory": "ηρσ", "reference/notation": "κημρσ"}
"""The pages about a letter."""
PROOFS = ("kappa", "methods-theory", "theory", "theory-more", "two-theories")
"""The pages in whose sentences x_i^k stands with its indices."""
INDEX = re.compile(r"(?<=\S)([_^])(\{[^{}]+\}|max|min|jj|[A-Za-z0-9α-ωΣ*])")
EXAMPLES = HERE.parent / "examples"
INCLUDED = {"NOTATION.md": "notation.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the root that are pages of the reference."""

SCRATCH = tempfile.TemporaryDirectory()
"""Where the examples run, and leave what they write."""
for _path in (*EXAMPLES.glob("*.py"), EXAMPLES / "GALLERY_HEADER.rst"):
    shutil.copy(_path, SCRATCH.name)


def show_written(block: object, variables: dict[str, Any], gallery: dict[str, Any]) -> str:
    """Show the images that a part of an example wrote."""
    written = [(image, next(variables["image_path_iterator"])) for image in sorted(Path(SCRATCH.name).rglob("*.png"))]
    for image, place in written:
        shutil.move(image, place)
    return str(figure_rst([place for _, place in written], gallery["src_dir"]))


project = html_title = "decomfl-lab"
author = copyright = "The decomfl-lab authors"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_templates", "gallery/sg_execution_times.rst", "sg_execution_times.rst"]
suppress_warnings = ["config.cache"]  # functions cannot be
smartquotes = False  # -- is an option here, not a dash
default_role = "code"
nitpicky = True
nitpick_ignore_regex = [("py:class", ".*")]  # annotations name classes of other libraries, and some that are not public

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]  # as GitHub has it
html_math_renderer = "mathml"  # needs neither a script nor a network
myst_heading_anchors = 4  # those of GitHub, so that a link to a heading works here and there

autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autosummary_context = {"public": PUBLIC}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source"]
python_maximum_signature_line_length = 80

next(each for each in PyObject.doc_field_types if each.name == "variable").label = "Attributes"

sphinx_gallery_conf = {
    "examples_dirs": [SCRATCH.name],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/(train|kappa|my_bound|my_method)\.py$",  # these run; the others are shown
    "download_all_examples": False,
    "image_scrapers": [show_written],
    "default_thumb_file": str(HERE / "_static" / "blank.png"),
    "abort_on_example_error": True,
    "show_signature": False,
    "min_reported_time": 1000,
}

html_theme = "furo"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
linkcheck_timeout = 20


def help_of(words: list[str]) -> str:
    """What a command says of itself, with all its options."""
    out = io.StringIO()
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}), contextlib.redirect_stdout(out):
        code = main([*words, "--help-all"])
    assert code == 0, words
    return out.getvalue().strip()


def write_pages(app: Sphinx) -> None:
    """Write the pages that are made of data: findings, statements, tables, benchmarks, ratios of bounds, commands."""
    records = HERE.parent / "paper_repro" / "results" / "benchmarks"
    root = os.fspath(app.srcdir)
    for words in (["findings"], ["bench", "page", str(records)]):
        assert main([*words, "--write", root]) == 0, words
    Path(root, "theory-ratios.md").write_text(ratios.page(), encoding="utf-8")
    # A page a command, with its sub-commands, from what they say of themselves.
    folder = Path(root, "reference", "commands")
    folder.mkdir(parents=True, exist_ok=True)

    def section(words: list[str], command: click.Command | None) -> str:
        own = f"{'#' * len(words)} decomfl {' '.join(words)}\n\n```text\n{help_of(words)}\n```\n"
        if not isinstance(command, click.Group):
            return own
        context = click.Context(command)
        inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        return "\n".join([own, *(section([*words, name], each) for name, each in inner.items() if each)])

    command_line = application()
    context = click.Context(command_line)
    pages = {name: section([name], command_line.get_command(context, name)) for name in command_line.entries}
    listed = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    pages["index"] = f"# Command line\n\n```text\n{help_of([])}\n```\n\n{listed}\n"
    for name, text in pages.items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def prepare_page(app: Sphinx, docname: str, content: list[str]) -> None:
    """Title an example and keep its lines; lead links out of docs/ to the page that shows the file, or to the file."""
    included = next((name for name, page in INCLUDED.items() if docname == f"reference/{page[:-3]}"), None)
    folder = HERE.parent if included else (HERE / docname).parent

    def led(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        path = (folder / target).resolve()
        inside = path.relative_to(HERE.parent) if path.is_relative_to(HERE.parent) else path
        if not path.exists():
            return found[0]
        if path.is_relative_to(HERE):
            return f"](/{path.relative_to(HERE)}{anchor})"
        if str(inside) in INCLUDED:
            return f"](/reference/{INCLUDED[str(inside)]}{anchor})"
        if path.parent == EXAMPLES and path.suffix == ".py":
            return f"](/gallery/{path.stem}.rst)"
        return f"](/index.md{anchor})" if str(inside) == "README.md" else f"](<path:/{os.path.relpath(path, HERE)}>)"

    if docname.startswith("gallery/"):
        head, label, rest = content[0].partition(".. _sphx_glr_gallery_")
        words, made, program = rest.partition(".. GENERATED FROM")
        words = re.sub(r"(?m)^((?: {4}\S.*\n)+)", r"::\n\n\1", words)
        content[0] = head + label + words + made + program
        content[0] = re.sub(
            r"(?m)^(\.\. _sphx_glr_gallery_\w+\.py:\n+)([^\n:.]+)[:.]? *",
            lambda found: f"{found[1]}{found[2]}\n{'=' * len(found[2])}\n\n",
            content[0],
        )
    elif (HERE / f"{docname}.md").exists():
        if included:
            app.env.note_dependency(str(HERE.parent / included))
        text = (HERE.parent / included).read_text(encoding="utf-8") if included else content[0]
        content[0] = re.sub(r"\]\(([\w./-]+)(#[^)\s]*)?\)", led, text)


def prepare_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring restructured text: what is indented stays as it is, options come with their help."""
    if what == "data" and not hasattr(obj, "__wrapped__"):
        # What stands below the assignment of a public name, in the module that it comes from.
        place, found = ("", name.rpartition(".")[2]), []
        for module in [each for each in sys.modules if each.partition(".")[0] in ("decomfl_lab", "hessian", "theory")]:
            if not found and vars(sys.modules[module]).get(place[1]) is obj:
                found = ModuleAnalyzer.for_module(module).find_attr_docs().get(place, [])
        if not found:
            logging.getLogger(__name__).warning("%s is public and has no sentence below its assignment", place[1])
        lines[:] = ["", *found]  # the blank line: no type precedes a colon
    if what == "class":
        # What stands beside each field, behind it or in the lines above it.
        source = textwrap.dedent(inspect.getsource(obj))
        (body,), written = ast.parse(source).body, source.splitlines()
        lines.append("")
        for own in body.body if isinstance(body, ast.ClassDef) else ():
            if isinstance(own, ast.AnnAssign) and own.end_lineno and own.end_col_offset:
                before = reversed(written[: own.lineno - 1])
                above = itertools.takewhile(lambda line: line.strip().startswith("#"), before)
                behind = written[own.end_lineno - 1].encode()[own.end_col_offset :].decode()
                told = " ".join(line.partition("# ")[2] for line in [*reversed([*above]), behind]).strip()
                if told and not told.startswith(("type:", "noqa")):
                    lines.append(f":ivar {ast.unparse(own.target)}: {told}")
    if what == "class" and dataclasses.is_dataclass(obj):
        for field in dataclasses.fields(obj):
            if "option" in field.metadata:
                lines.append(f":ivar {field.name}: {field.metadata['option'].help}")
            elif "codec" in field.metadata:
                names = ", ".join(f"``{option}``" for option in field.metadata["codec"].options)
                lines.append(f":ivar {field.name}: An object, which flags and files write as {names}.")

    def piece(found: re.Match[str]) -> str:
        if found["code"]:
            try:  # a formula may be an expression, or no Python at all
                program = not all(isinstance(each, ast.Expr) for each in ast.parse(textwrap.dedent(found[0])).body)
            except SyntaxError:
                program = False
            return f".. code-block:: {'python' if program else 'text'}\n\n{found[0]}"
        text = re.sub(r"(?s)(``.*?``|(?<!\w)\*\w[^*]*\w\*)|([|*])", lambda each: each[1] or f"\\{each[2]}", found[0])
        return re.sub(r"^Returns:\n +", ":returns: ", text)  # else what precedes a colon is taken for a type

    pieces = r"(?m)(?P<section>^[A-Z]\w+:\n(?:(?: .*)?\n)+)|(?P<code>^    .*\n(?:(?:    .*)?\n)*)|(?:^.+\n)+"
    lines[:] = re.sub(pieces, piece, "\n".join([*lines, ""])).split("\n")


def write_mathml(translator: Any, node: Element) -> None:
    """Typeset a formula as MathML, which browsers show by themselves."""
    shown = isinstance(node, nodes.math_block)
    text = node.astext().replace("{aligned}", "{align*}")  # GitHub knows the first alone
    formula = mathml(text, display="block" if shown else "inline")
    translator.body.append(f'<div class="math">{formula}</div>' if shown else formula)
    raise nodes.SkipNode


def finish_page(app: Sphinx, doctree: Element) -> None:
    """Set dashes and indices, and let the search find the pages about a Greek letter by its name."""
    page = app.env.current_document.docname
    # The dashes between a parameter and its description, which Sphinx leaves to its typographer.
    for text in list(doctree.findall(Text)):
        if text == " -- " and text.parent is not None:
            text.parent.replace(text, Text(" – "))
    # In the sentences of proofs the indices of symbols stand below and above the line.
    for text in list(doctree.findall(Text)) if page in PROOFS else ():
        if not isinstance(text.parent, (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block)):
            before, *rest = INDEX.split(text)
            found: list[nodes.Node] = [Text(before)]
            for sign, own, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
                kind = nodes.subscript if sign == "_" else nodes.superscript
                found += [kind("", own.strip("{}")), Text(after)]
            text.parent.replace(text, found)
    for letter in ABOUT.get(page, ""):
        whole = next(iter(doctree.findall(nodes.section)))
        entries = [("single", word, whole["ids"][0], "main", None) for word in LETTERS[letter]]
        whole.insert(0, index(entries=entries))


def lead_page(app: Sphinx, error: Exception | None) -> None:
    """Lead the links of the page that rebuilds a model to the pages of the site; in a clone they lead to sources."""
    page = Path(app.outdir, "_static", "rebuild", "index.html")
    if error is None and page.exists():
        page.write_text(re.sub(r'(href="[\w./-]+)\.md"', r'\1.html"', page.read_text("utf-8")), "utf-8")


def find_public(app: Sphinx, env: Any, node: Element, contnode: Element) -> Element | None:
    """Lead the name of what a module within defines to its public name."""
    target = HOMES.get(node.get("reftarget", "")) if node.get("refdomain") == "py" else None
    found = target and env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, contnode)
    return found or None


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("builder-inited", write_pages)
    app.connect("source-read", prepare_page)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # before napoleon
    app.connect("doctree-read", finish_page)
    app.connect("build-finished", lead_page)
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))
    app.connect("missing-reference", find_public)
