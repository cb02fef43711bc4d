"""The picture at the head of the README."""

from pathlib import Path

import pytest
from PIL import Image

from paper_repro.commands import hero

PICTURE = Path(__file__).parents[3] / "docs" / "figure-2.png"


def drawn_by() -> object:
    with Image.open(PICTURE) as image:
        return image.info.get(hero.KEY)


def test_the_readmes_picture_is_of_the_recorded_rows_by_todays_code() -> None:
    assert drawn_by() == hero.made_of(), f"python -m paper_repro.commands.hero {PICTURE}"


def test_other_rows_make_a_picture_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fig2-full.csv.gz").write_bytes(b"other rows")
    monkeypatch.setattr(hero.recorded, "RESULTS", tmp_path)
    assert drawn_by() != hero.made_of()
