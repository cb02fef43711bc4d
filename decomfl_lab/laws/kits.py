"""The laws of anybody's code as files that need nothing of the lab, to be kept beside somebody's tests."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

from decomfl_lab.errors import require
from decomfl_lab.files import write_atomically

__all__ = ["write_kits"]

_HERE = Path(__file__).parent
_KITS = {"update_laws.py": "update.py", "identity_laws.py": "identity.py"}


def write_kits(folder: Path) -> list[Path]:
    """Write both kits, and a file of tests to fill in, into a folder; the files.

    Raises:
        InputError: If one of them is there.
    """
    _, others, outcomes = _parts("outcomes.py")
    made = f"# Written by `decomfl verify --write` of decomfl_lab {version('decomfl-lab')}, under the MIT License."
    texts = {}
    for name, kit in _KITS.items():  # with what became of laws in it, which it imports here
        about, imports, own = _parts(kit)
        every = sorted(line for line in imports | others if "decomfl_lab" not in line)
        head = [about, "", made, "", "from __future__ import annotations", ""]
        texts[name] = "\n".join([*head, *every, "", outcomes, own, ""])
    texts["test_noise.py"] = _HERE.joinpath("_noise_template.py").read_text(encoding="utf-8")
    for name in texts:
        require(not (folder / name).exists(), "write", f"be a folder without {name}", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts]


def _parts(name: str) -> tuple[str, set[str], str]:
    """The docstring of a module, its imports, a text each, and what follows them."""
    text = _HERE.joinpath(name).read_text(encoding="utf-8")
    about, *statements = ast.parse(text).body
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    # Behind the imports stands what a module offers, which is not said here.
    offered = statements[len(imports)]
    lines = text.splitlines()
    found = {ast.unparse(node) for node in imports if not ast.unparse(node).startswith("from __future__")}
    return "\n".join(lines[: about.end_lineno]), found, "\n".join(lines[offered.end_lineno :])
