"""The tutorials as notebooks, to play with: ``python -m tests.docs.notebooks out/notebooks``.

The pages are the source, and nothing is kept twice. What the tests run of a page is a cell that runs: ```python as it
is, or as a file where its first line is ``# FILE.py``; ```sh by bash, which stops at the first command that fails. All
else is text, also blocks that are not run and what a block prints. Each notebook has a folder of its own, as it writes
files. With ``--run`` each is run from top to bottom, in a kernel of its own.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sybil import Document

from decomfl_lab.storage.files import write_atomically
from tests.docs.blocks import ROOT, Blocks

TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "index")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
NAMED = re.compile(r"# *(\w+\.py)\b")
FOR_THE_READER = ("pip", "make", "git")
"""Commands that the tests leave to the reader, and so do the notebooks."""
BEGIN = """\
# The cells below find the command decomfl in this kernel's environment. They write files into this folder and import
# them: when you have changed such a file, restart the kernel and run all cells.
import os
import sys

os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]"""


def notebook(page: Path, folder: Path) -> dict[str, Any]:
    """The notebook of a page, with links that lead to the same files from a folder."""
    pieces = [(kind, source) for kind, source in _pieces(page, folder) if source]
    pieces.insert(1, ("code", BEGIN))
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(pieces):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source}
        cells.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _pieces(page: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The page in order: ("markdown" or "code", source)."""

    def led(found: re.Match[str]) -> str:
        return "](" + os.path.relpath((page.parent / found[1]).resolve(), folder.resolve())

    def text(source: str) -> str:
        formulas = re.sub(r"(?s)^```math\n(.*?)^```$", r"$$\n\1$$", source, flags=re.MULTILINE)  # as Jupyter has them
        return LINK.sub(led, formulas).strip()

    document, end = Document.parse(str(page), Blocks()), 0
    for example in document.examples():
        code = as_cell(example.region.lexemes["language"], example.parsed)
        if code is not None:
            yield "markdown", text(document.text[end : example.region.start])
            yield "code", code
            end = example.region.end
    yield "markdown", text(document.text[end:])


def as_cell(language: str, source: str) -> str | None:
    """The cell of a block that is run; None for what is text."""
    source = source.rstrip("\n")
    if language == "python":
        named = NAMED.match(source)
        return f"%%writefile {named[1]}\n{source}" if named else source
    words = [line.split(maxsplit=1)[0] for line in source.splitlines() if line.strip()]
    if language == "sh" and not set(words) & set(FOR_THE_READER):
        return f"%%bash -e\n{source}"
    return None


def run(made: dict[str, Any], folder: Path) -> None:
    """Run a notebook in a folder; nbclient's CellExecutionError shows the cell that fails."""
    import nbformat
    from nbclient import NotebookClient

    NotebookClient(nbformat.from_dict(made), resources={"metadata": {"path": str(folder)}}, timeout=600).execute()


def main(words: Sequence[str] | None = None) -> int:
    """Write every notebook, and run them where it is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.notebooks", description="The tutorials as notebooks.")
    parser.add_argument("out", type=Path, help="The folder in which each notebook has a folder.")
    parser.add_argument("--run", action="store_true", help="Run each from top to bottom (needs nbclient, ipykernel).")
    given = parser.parse_args(words)
    for page in TUTORIALS:
        folder = given.out / page.stem
        folder.mkdir(parents=True, exist_ok=True)
        made = notebook(page, folder)
        write_atomically(folder / f"{page.stem}.ipynb", json.dumps(made, ensure_ascii=False, indent=1) + "\n")
        if given.run:
            run(made, folder)
        print(folder / f"{page.stem}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
