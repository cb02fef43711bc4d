"""As many intervals of κ hold as are stated to, 95 %, whatever the spectrum."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.coverage import SPECTRA, CoverageRun, counted, coverage_runs
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from hessian.spectrum.forms import SphereForms

SETTINGS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"rtol": 0.05}, 135),
    ({"products": 20}, 80),
    # At 1 % an indefinite matrix takes 400 products a run; `decomfl bench coverage` has it too.
    ({"rtol": 0.01, "max_products": 1000, "spectra": [name for name in SPECTRA if name != "indefinite"]}, 9),
)


@pytest.mark.thorough
def test_95_percent_of_the_intervals_hold() -> None:
    """2,007 runs on nine spectra; seeds are not those that the method was tuned with."""
    runs = {str(settings): list(coverage_runs(seeds=range(10_000, 10_000 + n), **settings)) for settings, n in SETTINGS}
    every = [run for some in runs.values() for run in some]
    assert len(every) >= 2000
    tables = [counted(every, "all"), *(counted(some, "all") for some in runs.values())]
    parts = [counted(every, by) for by in ("probes", "spectrum")]
    for errors, some in ((2, tables), (3, parts)):  # of many parts one is further off by chance
        for row in (row for table in some for row in table if row.runs >= 100):
            allowed = errors * (0.95 * 0.05 / row.runs) ** 0.5
            assert 0.94 - allowed <= row.coverage <= 0.96 + allowed, row
    (total,) = tables[0]
    assert abs(total.too_low - total.too_high) < 0.015  # neither side has the misses


@pytest.mark.thorough
def test_an_interval_that_is_too_narrow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, checked: intervals of six tenths of their width hold far more seldom."""
    right = SphereForms.interval

    def narrow(self: SphereForms, confidence: float, play: float) -> tuple[float, float]:
        low, high = right(self, confidence, play)
        return low + 0.2 * (high - low), high - 0.2 * (high - low)

    monkeypatch.setattr(SphereForms, "interval", narrow)
    (row,) = counted(list(coverage_runs(seeds=range(20), products=20)), "all")
    assert row.coverage < 0.9 - 2 * row.stderr


def run(probes: int, low: float, high: float) -> CoverageRun:
    return CoverageRun("flat", 300, 2.0, 2.2, low, high, probes, 4 + probes)


def test_spectra_are_what_their_names_say_and_unknown_ones_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    first = {name: next(iter(coverage_runs(seeds=[0], spectra=[name], products=8))) for name in SPECTRA}
    assert all(100 < each.d < 500 for each in first.values())
    assert first["one dominant"].truth < 3 < 100 < first["flat"].truth
    assert main(["bench", "coverage", "--spectra", "round"]) == 2
    assert "spectra must be one of flat, " in capsys.readouterr().err
    with pytest.raises(InputError, match="by must be one of"):
        counted([run(3, 1.9, 2.1)], "seed")
