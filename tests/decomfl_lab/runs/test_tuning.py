"""A learning rate and a P that the curvature chooses: ``runs.tuning``."""

import math
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import decomfl_lab as lab
from decomfl_lab import DivergedError, InputError, Run, Sgd
from decomfl_lab.cli.main import main
from decomfl_lab.cli.train import RunPlace, prepared
from decomfl_lab.runs.run import load_run
from decomfl_lab.runs.tuning import Tuning, cheapest_directions, largest_step, rehearse
from decomfl_lab.storage.provenance import read_provenance
from tests.cases import refuses, rows_of, sampled
from theory.checks.stability import load
from theory.problems.spectrum import Spectrum


class QuadraticBowl(nn.Module):
    """f(x) = ½ Σ_j λ_j x_j², with ``half_square`` and whatever examples, from a random x_0."""

    def __init__(self, eigenvalues: Tensor, seed: int) -> None:
        super().__init__()
        x = torch.randn(len(eigenvalues), generator=torch.Generator().manual_seed(seed))
        self.x, self.roots = nn.Parameter(x), eigenvalues.sqrt()

    def forward(self, inputs: Tensor) -> Tensor:
        """√λ_j x_j, once for each example."""
        return (self.roots * self.x).expand(len(inputs), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared norm of the outputs, the mean over examples."""
    return 0.5 * outputs.square().sum(1).mean()


spectra = st.lists(
    st.tuples(st.floats(1e-3, 1e3), st.integers(1, 1000)), min_size=1, max_size=4, unique_by=lambda e: e[0]
)
betas = st.sampled_from([0.0, 0.5, 0.9, 0.99])


def spectrum_of(groups: list[tuple[float, int]]) -> Spectrum:
    values, numbers = zip(*sorted(groups, reverse=True), strict=True)
    return Spectrum(values, numbers)


def step_of(spectrum: Spectrum, *, P: int, beta: float) -> float:
    squares = spectrum.multiplicities @ spectrum.eigenvalues**2
    return largest_step(spectrum.trace, math.sqrt(squares), P=P, beta=beta)


@given(spectra, st.integers(1, 200), betas)
def test_the_step_uses_up_no_more_than_half_of_the_stability_whatever_the_spectrum(
    groups: list[tuple[float, int]], P: int, beta: float
) -> None:
    spectrum = spectrum_of(groups)
    assert load(spectrum, step_of(spectrum, P=P, beta=beta), P=P, beta=beta) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_the_step_uses_up_all_of_the_half_where_one_eigenvalue_stands_out(beta: float) -> None:
    spectrum = spectrum_of([(50.0, 1), (1e-4, 10**6)])
    assert load(spectrum, step_of(spectrum, P=20, beta=beta), P=20, beta=beta) == pytest.approx(0.5, rel=1e-4)
    for other in ({"P": 40, "beta": beta}, {"P": 20, "beta": 0.99}):
        assert load(spectrum, step_of(spectrum, **other), P=20, beta=beta) > 0.505


def test_on_equal_eigenvalues_the_step_is_that_of_the_fastest_descent() -> None:
    d, P = 10**6, 20  # E‖x⁺‖² = (1 − 2h + h²(d + P + 1)/P)‖x‖², least at h = P/(d + P + 1)
    assert largest_step(d, math.sqrt(d), P=P) == pytest.approx(P / (d + P + 1), rel=0.02)


@given(st.floats(1.0, 1e4))
def test_the_chosen_directions_are_the_most_for_a_tenth_more_passes(kappa: float) -> None:
    def passes(P: int) -> float:
        return P / largest_step(kappa, math.sqrt(kappa), P=P)

    P = cheapest_directions(kappa, math.sqrt(kappa))
    assert P in (3, 1000) or passes(P) <= 1.1 * passes(1) < passes(P + 1)


@pytest.mark.parametrize("beta", sampled([0.0, 0.9], 1))
def test_on_a_quadratic_the_learning_rate_is_the_one_of_its_spectrum(beta: float) -> None:
    eigenvalues = torch.cat([torch.full((2,), 30.0), torch.ones(200)])
    examples = torch.zeros(4, 1), torch.zeros(4, 1)
    own: dict[str, Any] = {"momentum": beta, "weight_decay": 0.0, "lr": "auto", "rounds": 1}
    run = lab.train(QuadraticBowl(eigenvalues, 0), half_square, [examples] * 3, **own)
    spectrum = Spectrum((30.0, 1.0), (2, 200))
    exact = step_of(spectrum, P=20, beta=beta)
    assert 0.8 * exact < run.config.lr / (1 - beta) < 1.05 * exact  # the least of ten measurements


@dataclass
class Scripted:
    """A federation whose trace grows with what it was moved, and that diverges at steps above 0.4."""

    eta: float
    P: int
    moved: float = 0.0
    round: int = 0

    def __post_init__(self) -> None:
        record = SimpleNamespace(scalars=np.ones((1, self.P), np.float32))
        history = SimpleNamespace(since=lambda _: [record])
        self.server = SimpleNamespace(m=2, K=1, history=history)
        self.curvature = SimpleNamespace(steps=[], columns=self.columns)

    def advance(self) -> None:
        if self.eta > 0.4:
            raise DivergedError("scalars")
        self.moved += self.eta

    def columns(self) -> dict[str, float]:
        trace = 20.0 * (1.0 + self.moved)
        return {"hessian_trace": trace, "hessian_frobenius": 1.0, "kappa_low": 1.0, "kappa_high": 99.0}


def test_the_step_is_admitted_by_the_curvature_of_its_own_way() -> None:
    found: Tuning = rehearse(Scripted, 20, Sgd())  # type: ignore[arg-type]
    at_start, at_end = (largest_step(20.0 * (1.0 + 100 * h), 1.0, P=20) for h in (0.0, found.h))
    assert at_start > 0.4
    assert 0.7 * at_end < found.h <= at_end


class Hopeless(Scripted):
    """It diverges at every step above that at which nothing moves."""

    def advance(self) -> None:
        if self.eta > 1e-20:
            raise DivergedError("scalars")


def test_a_rehearsal_that_fails_at_every_step_says_so() -> None:
    with pytest.raises(InputError, match="lr must be a number where no step is stable"):
        rehearse(Hopeless, 20, Sgd())  # type: ignore[arg-type]


SMALL: dict[str, Any] = {"data": "digits", "model": "logistic", "clients": 4, "sampled": 2, "batch_size": 16}


def searched(**options: Any) -> Run:
    """The run of the command ``decomfl train`` with these options."""
    return prepared(options.pop("method", "decomfl"), RunPlace(), SMALL | options)


def test_a_tuned_run_is_the_run_with_the_number_and_says_how_it_was_found(tmp_path: Path) -> None:
    run = searched(rounds=3, eval_every=3, lr="auto", perturbations="auto")
    run.train(out=tmp_path / "auto")
    given = Run(
        lab.TrainConfig(**SMALL, rounds=3, eval_every=3, lr=run.config.lr, perturbations=run.config.perturbations)
    )
    given.train(out=tmp_path / "given")
    assert torch.equal(given.federation.x, run.federation.x)
    assert (tmp_path / "auto/config.toml").read_text() == (tmp_path / "given/config.toml").read_text()
    assert read_provenance(tmp_path / "auto")["tunings"] == [str(run.tuning)]
    assert "tunings" not in read_provenance(tmp_path / "given")
    again = load_run(tmp_path / "auto").more(1)
    assert read_provenance(tmp_path / "auto")["tunings"] == [str(run.tuning)]
    assert again.config.lr == run.config.lr
    assert main(["replay", str(tmp_path / "auto")]) == 0


@refuses(*rows_of(__file__)["tuned"])
def test_what_cannot_be_tuned_is_refused_by_name(options: dict[str, Any]) -> None:
    searched(**options)
