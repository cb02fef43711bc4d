"""What is written for somebody: the laws of anybody's code, which need nothing of the lab, and a target to fill in."""

import ast
from importlib.metadata import version
from pathlib import Path

from decomfl_lab.errors import require
from decomfl_lab.storage.files import write_atomically

_HERE = Path(__file__).parent
_LAWS = _HERE.parent
_KITS = {"update_laws.py": "steps/update.py", "identity_laws.py": "steps/identity.py"}
_CONTRACTS = {"Model": "AnyReplica", "Client": "AnyClient", "Server": "AnyServer", "Mine": "Implementation"}
"""The classes of the template, and those of ``contract`` that say what methods they have."""
_LABS = ("supports", "measured_by", "delivery")
"""What of an implementation is not to be filled in."""


def target_template() -> str:
    """The file that a target of one's own is filled in from: ``target_template``, with every method that it lacks."""
    text = _HERE.joinpath("target_template.py").read_text(encoding="utf-8").rstrip()
    module = ast.parse(_LAWS.joinpath("contract.py").read_text(encoding="utf-8"))
    contract = {getattr(node, "name", ""): node for node in module.body}
    for template, contracted in _CONTRACTS.items():
        before, _, rest = text.partition(f"\n\n\nclass {template}")
        written, *others = rest.split("\n\n\nclass ")
        parts = [f"class {template}{written}"]
        for node in ast.walk(contract[contracted]):
            if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name.startswith("_"):
                continue
            if node.name in _LABS or f"    def {node.name}(" in written:
                continue
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None  # whose names are the lab's own
            about = f'        """{ast.get_docstring(node, clean=False)}"""'
            parts.append(f"    def {node.name}({ast.unparse(node.args)}):\n{about}\n        raise NotImplementedError")
        text = "\n\n\n".join([before, "\n\n".join(parts), *(f"class {other}" for other in others)])
    return f"{text}\n"


def write_kits(folder: Path) -> list[Path]:
    """Write both kits, and a file of tests to fill in, into a folder; the files. InputError if one of them is there."""
    _, others, outcomes = _parts("outcomes.py")
    made = f"# Written by `decomfl verify --write` of decomfl_lab {version('decomfl-lab')}, under the MIT License."
    texts = {}
    for name, kit in _KITS.items():  # with what became of laws in it, which it imports here
        about, imports, code = _parts(kit)
        import_lines = sorted(line for line in imports | others if "decomfl_lab" not in line)
        head = [about, "", made, "", "from __future__ import annotations", ""]
        texts[name] = "\n".join([*head, *import_lines, "", outcomes, code, ""])
    texts["test_noise.py"] = _HERE.joinpath("noise_template.py").read_text(encoding="utf-8")
    for name in texts:
        require(not (folder / name).exists(), "write", f"be a folder without {name}", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def _parts(name: str) -> tuple[str, set[str], str]:
    """The docstring of a module, its imports, a text each, and what follows them."""
    text = _LAWS.joinpath(name).read_text(encoding="utf-8")
    about, *statements = ast.parse(text).body
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = text.splitlines()
    import_lines = {ast.unparse(node) for node in imports if not ast.unparse(node).startswith("from __future__")}
    return "\n".join(lines[: about.end_lineno]), import_lines, "\n".join(lines[imports[-1].end_lineno :])
