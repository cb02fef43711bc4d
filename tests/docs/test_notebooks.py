"""The tutorials as notebooks: made of the pages, whole, and they run from top to bottom in a kernel of Jupyter."""

import json
from pathlib import Path

import pytest
from sybil import Document

from tests.cases import rows_of, sampled
from tests.docs.blocks import ROOT, Blocks
from tests.docs.notebooks import BEGIN, LINK, TUTORIALS, as_cell, main, notebook, run

QUICK = ("federation",)
"""The notebook of a few seconds; the others run in `make thorough`."""


@pytest.fixture
def kernel() -> None:
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"needs {name}: pip install -c constraints.txt -e '.[notebooks]'")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_notebook_has_every_block_that_the_tests_run(page: Path, tmp_path: Path) -> None:
    cells = notebook(page, tmp_path)["cells"]
    examples = Document.parse(str(page), Blocks()).examples()
    wanted = [as_cell(each.region.lexemes["language"], each.parsed) for each in examples]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert code == [BEGIN, *filter(None, wanted)]
    words = sum(len(cell["source"].split()) for cell in cells) - len(BEGIN.split())
    assert words >= len(page.read_text(encoding="utf-8").split()) - 4 * len(code)  # but for the fences of the blocks
    for link in LINK.findall("".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")):
        assert (tmp_path / link).resolve().is_relative_to(ROOT), link


def test_the_tutorial_of_five_minutes_has_at_most_700_words_with_its_code() -> None:
    assert len((ROOT / "docs" / "tutorials" / "kappa.md").read_text(encoding="utf-8").split()) <= 700


@pytest.mark.usefixtures("kernel")
@pytest.mark.filterwarnings("default")  # of the libraries around the kernel
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.thorough] * (page.stem not in QUICK), id=page.stem) for page in TUTORIALS],
)
def test_a_notebook_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    run(notebook(page, tmp_path), tmp_path)


@pytest.mark.usefixtures("kernel")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("block", "message"), sampled(map(tuple, rows_of(__file__)["rows"]), 1))
def test_a_broken_cell_is_noticed(block: str, message: str, tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{block}\n", encoding="utf-8")
    with pytest.raises(CellExecutionError, match=message):
        run(notebook(page, tmp_path), tmp_path)


def test_text_stays_text_and_links_lead_to_the_same_files(tmp_path: Path) -> None:
    text = "# Title\n\n[a](b.md#c), [d](https://example.org)\n\n```sh\npip install x\n```\n\n```python\nx = 1\n```\n"
    text += "\n```text\nprinted\n```\n\n<!-- not run: it takes hours -->\n```sh\ndecomfl paper\n```\n"
    (tmp_path / "out").mkdir()
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    cells = [(cell["cell_type"], cell["source"]) for cell in notebook(page, tmp_path / "out")["cells"]]
    assert [kind for kind, _ in cells] == ["markdown", "code", "code", "markdown"]
    assert "[a](../b.md#c), [d](https://example.org)" in cells[0][1]
    assert "pip install x" in cells[0][1]
    assert "decomfl paper" in cells[3][1]


def test_the_command_writes_a_folder_for_each_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.stem for path in written] == [page.stem for page in TUTORIALS]
    assert all(json.loads(path.read_text(encoding="utf-8"))["nbformat"] == 4 for path in written)
