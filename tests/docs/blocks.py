"""The blocks of a page of documentation, run in order in one namespace and one folder, which may be thrown away.

- ```python is run. Where its first line is ``# FILE.py`` it is also written to that file, for later blocks to import.
- ```sh is run line by line, in this process: ``decomfl`` and ``python`` must exit with 0; ``pip``, ``make`` and ``git``
  are for the reader alone; any other command is refused.
- ```text right below one of these is what it prints; ``...`` stands for what is left out.
- Other languages of ``SHOWN``, and blocks without a language, are shown and not run.
- ``<!-- not run: REASON -->`` right above a block leaves it out.
"""

import contextlib
import doctest
import io
import logging
import os
import random
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from decomfl_lab.cli.main import main

ROOT = Path(__file__).parents[2]
MADE = ("benchmarks.md", "findings.md", "statements.md", "theory-ratios.md")
"""The pages that `make docs` writes."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in MADE)]
SHOWN = {"", "text", "toml", "json", "yaml", "bibtex", "markdown", "html", "js", "math"}
LEFT_OUT = re.compile(r"<!-- *not run\b(.*?)-->", re.DOTALL)


def run_page(path: Path, folder: Path) -> None:
    """Run what is runnable in a page; an AssertionError, or the block's own error, names the file and the line."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    with isolated(folder):
        for example in Document.parse(str(path), Blocks()).examples():
            example.evaluate()


def reasons(path: Path) -> dict[int, str]:
    """The line of every block that is left out, and why; an empty reason where the comment gives none."""
    text = path.read_text(encoding="utf-8")
    return {
        text.count("\n", 0, found.start()) + 1: found[1].strip().removeprefix(":").strip()
        for found in LEFT_OUT.finditer(text)
    }


class Blocks:
    """A parser for Sybil that finds the blocks that are run, and the evaluators of these."""

    printed = ""  # by the last block that was run

    def __call__(self, document: Document) -> Iterator[Region]:
        known: dict[str, Callable[[Example], str | None]] = {"python": self.python, "sh": self.sh, "text": self.text}
        ran = 0  # where the last block ends that is run
        for region in RawFencedCodeBlockLexer(re.compile(r" *(?P<language>\S*)[^\n]*\n"))(document):
            language, before = region.lexemes["language"], document.text[ran : region.start].rstrip()
            comments = list(LEFT_OUT.finditer(before))
            if comments and comments[-1].end() == len(before):
                continue
            if language.startswith("{") and not language.startswith("{code"):
                continue  # a directive of the site
            if language not in SHOWN or (language == "text" and ran and not before):
                region.parsed, region.evaluator = region.lexemes["source"], known.get(language, self.refuse)
                ran = region.end
                yield region

    def python(self, example: Example) -> None:
        self.printed = ""
        with self.printing():
            if named := re.match(r"# *(\w+\.py)\b", example.parsed):  # a file, whose names other blocks import
                Path(named[1]).write_text(example.parsed, encoding="utf-8")
                runpy.run_path(named[1])
            else:
                PythonEvaluator()(example)

    def sh(self, example: Example) -> str | None:
        self.printed = ""
        for line in example.parsed.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] not in ("pip", "make", "git"):
                with self.printing():
                    code = run_line(words)
                if code != 0:
                    return f"`{line.strip()}` exits with {code}: {self.printed[-2000:]}"
        return None

    def text(self, example: Example) -> str | None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if doctest.OutputChecker().check_output(example.parsed.strip(), self.printed.strip(), flags):
            return None
        return f"the block above prints something else: {self.printed[-2000:]}"

    def refuse(self, example: Example) -> str:
        language = example.region.lexemes["language"]
        return f"a block's language must be one of python, sh, {', '.join(sorted(SHOWN - {''}))}, got {language!r}"

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Keep what is printed and logged meanwhile."""
        out, log = io.StringIO(), logging.getLogger("decomfl_lab")
        handler = logging.StreamHandler(out)
        log.addHandler(handler)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                yield
        finally:
            log.removeHandler(handler)
            self.printed += out.getvalue()


def run_line(words: list[str]) -> object:
    """Run one command in this process; returns its exit code."""
    if set(words) & {"|", ">", ">>", "<", "&", "&&", "||", ";"} or words[0] not in ("decomfl", "python"):
        raise AssertionError(f"tests run plain lines of decomfl and python alone, got {shlex.join(words)}")
    if words[0] == "decomfl":
        return main(words[1:])
    with mock.patch.object(sys, "argv", words[2:] if words[1] == "-m" else words[1:]):
        try:
            if words[1] == "-m":
                runpy.run_module(words[2], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[1], run_name="__main__")
        except SystemExit as done:
            return done.code or 0
    return 0


@contextmanager
def isolated(folder: Path) -> Iterator[None]:
    """Work in ``folder``, and leave generators, threads, environment and modules as they were."""
    seeds, threads = (random.getstate(), np.random.get_state()), torch.get_num_threads()
    _forget(folder.parent)  # what other tests imported from folders of theirs
    log = logging.getLogger("decomfl_lab")
    level = log.level
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, {"COLUMNS": "80"}),
        mock.patch.object(sys, "path", [str(folder), *sys.path]),
        torch.random.fork_rng(devices=[]),
    ):
        try:
            yield
        finally:
            random.setstate(seeds[0])
            np.random.set_state(seeds[1])
            torch.set_num_threads(threads)
            log.setLevel(level)
            _forget(folder)


def _forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
