"""Every picture of docs/ says what it shows and of which rows, and these are the rows that are recorded."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from docs import pictures
from paper_repro.workflow import recordings
from tests.docs import browser
from tests.docs.blocks import ROOT

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


def test_one_picture_in_place_of_another_is_noticed(tmp_path: Path) -> None:
    shutil.copy(DOCS / "fig2.png", tmp_path / "fig3.png")
    assert told(tmp_path / "fig3.png") != wanted("fig3")


def test_other_rows_make_pictures_old(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = recordings.largest("fig2")
    assert kept is not None
    monkeypatch.setattr(recordings, "largest", lambda _: kept)
    monkeypatch.setattr(type(kept), "source", lambda *_: "fig2-full.csv.gz, sha256 other")
    assert all(told(DOCS / f"{stem}.png") != wanted(stem) for stem in ("fig2", pictures.HERO))
