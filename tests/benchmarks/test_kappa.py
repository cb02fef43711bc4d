"""The comparison of estimates of κ: the problem's truth, and what is counted."""

import json
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import kappa as measuring
from benchmarks.kappa import ComparisonOptions, ComparisonRow, comparison_rows
from benchmarks.ways import libraries
from benchmarks.ways.libraries import LIBRARIES, KappaEstimate, KappaProblem
from decomfl_lab.cli.main import main


@pytest.fixture(scope="module")
def problem() -> KappaProblem:
    return KappaProblem(examples=60, steps=30)


@pytest.fixture(scope="module")
def rows(problem: KappaProblem) -> list[ComparisonRow]:
    return list(comparison_rows(problem, ComparisonOptions(seeds=2, library_seeds=1, products=14)))


def test_the_truth_is_that_of_the_dense_hessian(problem: KappaProblem) -> None:
    top = problem.operator
    v = torch.randn(top.d, generator=torch.Generator().manual_seed(0))
    for _ in range(60):  # plain power iteration
        v = top.matvec(v / v.norm())
    assert problem.lambda_max == pytest.approx(float(v.norm()), rel=1e-3)
    signs = torch.randint(0, 2, (40, top.d), generator=torch.Generator().manual_seed(1)).float() * 2 - 1
    samples = torch.tensor([top.quad(z) for z in signs])
    assert abs(problem.trace - float(samples.mean())) < 4 * float(samples.std()) / len(samples) ** 0.5
    assert problem.kappa == problem.trace / problem.lambda_max


@pytest.mark.thorough
def test_every_library_that_is_installed_has_its_rows(rows: list[ComparisonRow]) -> None:
    present = {row.library for row in rows}
    assert present == {"decomfl-lab", *libraries.installed()}


@pytest.mark.thorough
def test_ours_spends_what_it_was_given_and_states_intervals(rows: list[ComparisonRow]) -> None:
    fixed, free = (row for row in rows if row.library == "decomfl-lab")
    assert (fixed.products, fixed.seeds, free.seeds) == (14, 2, 2)
    assert fixed.coverage is not None
    assert fixed.half_width is not None
    assert 0 < fixed.half_width < 1
    assert all(row.coverage is None for row in rows if row.library in LIBRARIES)


def test_errors_coverage_and_width_are_counted_against_the_truth() -> None:
    found = [
        KappaEstimate(9.0, 10, (8.0, 10.0)),
        KappaEstimate(10.0, 12, (9.0, 11.0)),
        KappaEstimate(13.0, 14, (12.0, 14.0)),
    ]
    problem: Any = SimpleNamespace(kappa=10.0)
    row = measuring._row(problem, "x", "y", found, [1.0, 2.0, 3.0])
    assert (row.products, row.coverage, row.half_width, row.seconds) == (12.0, pytest.approx(2 / 3), 0.1, 2.0)
    assert row.rms_error == pytest.approx((0.1 / 3) ** 0.5)


def test_an_interval_that_is_too_narrow_shows_in_the_coverage(
    problem: KappaProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sure(problem: KappaProblem, **settings: object) -> object:
        return lambda seed: KappaEstimate(problem.kappa * 1.1, 14, (problem.kappa * 1.09, problem.kappa * 1.11))

    monkeypatch.setattr(libraries, "our_kappa", sure)
    first = next(comparison_rows(problem, ComparisonOptions(seeds=2, library_seeds=1)))
    assert first.coverage == 0.0
    assert first.rms_error == pytest.approx(0.1)


def test_the_command_prints_its_rows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LIBRARIES", {})
    args = ["bench", "kappa", "--examples", "50", "--seeds", "1", "--library-seeds", "1", "--products", "10"]
    assert main([*args, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert set(table["rows"][0]) == {field.name for field in fields(ComparisonRow)}
    assert main(["bench", "kappa", "--examples", "3"]) == 2
    assert "examples must be an integer of at least 50, got 3" in capsys.readouterr().err
