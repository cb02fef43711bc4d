"""What the README and docs/ tell a reader to run does run and prints what they say; pictures are of recorded rows."""

import os
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sybil import Document

from docs import pictures
from paper_repro.workflow import recordings
from tests.cases import rows_of
from tests.docs import browser
from tests.docs.blocks import MADE, PAGES, ROOT, Blocks, reasons, run_page

LONG = (
    "own-data.md",
    "client.md",
    "method.md",
    "mezo.md",
    "bound.md",
    "own-module.md",
    "curvature.md",
    "own-parts.md",
    "kappa.md",
)
"""Pages that take more than five seconds, but for the README."""
RUNNABLE = [
    pytest.param(page, marks=[pytest.mark.thorough] * (page.name in LONG))
    for page in PAGES
    if any(Document.parse(str(page), Blocks()))
]


def _run(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "NOTATION.md"], ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    # A page that only make docs writes is nowhere for a reader of the repository.
    gone = [link for link in links if not (page.parent / link).exists() or Path(link).name in MADE]
    assert gone == []


def test_every_block_that_is_left_out_says_why() -> None:
    left_out = {f"{page.relative_to(ROOT)}:{line}": why for page in PAGES for line, why in reasons(page).items()}
    print(f"{len(left_out)} blocks are not run:", *(f"{where}: {why}" for where, why in left_out.items()), sep="\n")
    assert [where for where, why in left_out.items() if len(why.split()) < 3] == []


@pytest.mark.parametrize(("block", "message"), rows_of(__file__)["rows"])
def test_a_broken_block_is_noticed(block: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        _run(f"# Title\n\n{block}\n", tmp_path)


def test_blocks_share_names_files_and_a_folder(tmp_path: Path) -> None:
    _run(Path(__file__).with_name("page.md").read_text(encoding="utf-8"), tmp_path)
    assert list(reasons(tmp_path / "page.md").values()) == ["it would fail on\n     purpose"]


def test_a_page_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    changes = """
import os, random, sys, numpy, torch
from tests.cases import rows_of
torch.set_num_threads(2), torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
os.environ["DECOMFL_PLANTED"] = "1"
sys.path.insert(0, "planted")
"""

    def state() -> list[object]:
        seeds = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        return [seeds, torch.get_num_threads(), dict(os.environ), list(sys.path), os.getcwd(), "mine" in sys.modules]

    before = state()
    _run(f"```python\n# mine.py\n{changes}```\n\n```python\nimport mine, os\nos.chdir('/')\n```\n", tmp_path)
    assert state() == before


DOCS = ROOT / "docs"
WITHOUT_ROWS = {"kappa": ("kappa", "decomfl kappa, no recorded rows")}


def told(path: Path) -> tuple[str | None, str | None]:
    """The title of a picture, and its source."""
    with Image.open(path) as image:
        return image.info.get("Title"), image.info.get("Source")


def wanted(stem: str) -> tuple[str | None, str | None]:
    """What a picture has to say."""
    if stem == "rebuild":
        return browser.picture_of()["Title"], browser.picture_of()["Source"]
    if stem in WITHOUT_ROWS:
        return WITHOUT_ROWS[stem]
    part = "fig2" if stem == pictures.HERO else pictures.PICTURES[stem]
    kept = recordings.largest(part)
    return stem, "" if kept is None else kept.source(part)


@pytest.mark.parametrize("stem", sorted(path.stem for path in DOCS.glob("*.png")))
def test_a_picture_is_what_its_name_says_of_the_recorded_rows(stem: str) -> None:
    again = f"python -m docs.pictures docs {stem} draws it anew"
    again = "python -m tests.docs.browser docs/rebuild.png takes it anew" if stem == "rebuild" else again
    assert told(DOCS / f"{stem}.png") == wanted(stem), again
