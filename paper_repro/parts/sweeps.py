"""What is true, beside the bounds: exact values in d, κ, m, P, K and η, and small models that are really trained."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.objectives.objective import ModuleObjective
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.prepared import build_federation
from decomfl_lab.runs.provenance import provenance
from decomfl_lab.runs.told import Progress
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import HessianOperator
from hessian.operators.mean_loss import MeanLoss
from hessian.spectrum.density import spectral_density
from paper_repro.workflow.data import digest_named
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import Sizes
from paper_repro.workflow.series import PATTERNS, configuration
from theory.bounds import statement
from theory.checks.rounds import Rounds, rounds_by_bound, rounds_of, stability_limit
from theory.checks.simulate import simulate
from theory.notation.setting import Setting
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.statements.statement import Variant

__all__ = ["CLIENTS", "EPSILON", "KAPPA", "LOUD", "MAP_D", "MARGIN", "RUN", "SMALL_D", "SWEEPS", "sweep", "training"]

KAPPA: Final = 10  # held fixed while d grows
_D_FIXED: Final = 10**6  # held fixed while κ grows
RUN: Final[Mapping[str, Any]] = {"m": 10, "M": 100, "P": 10, "R": 1000, "distribution": "sphere"}
_NOISE: Final[Mapping[str, Any]] = {"D": 1.0, "sigma": 1.0, "sigma_G": 1.0}

SMALL_D, EPSILON, LOUD = 16, 0.1, 8.0
"""The problem of the speed-ups: parameters, ε [F²/X²] and σ or σ_G [F/X], with L = 1 and D = 1."""
REACH: Final = {"m": 256, "P": 16384, "K": 256}
_CORRECTED: Final = {"m": "theorem-1-single", "P": "theorem-1-single", "K": "theorem-1"}
CLIENTS: Final = 4096
MAP_D: Final = 10_000
_MAP_K: Final = (1, 4, 16)

_COMPARED: Final[tuple[Variant, ...]] = ("stated", "corrected")
_SEED: Final = 0


def sweep(name: str, size: Sizes) -> Work:
    """A table of exact values, one of ``SWEEPS``."""
    given = {"name": name, "size": size}
    return Work(title=f"theory: {name}", function=_swept, arguments=given, layers=("hessian", "theory"))


def _swept(folder: Path, report: Report, name: str, size: Sizes) -> Result:  # noqa: ARG001 (of the protocol)
    rows = []
    for done, row in enumerate(SWEEPS[name](size), 1):
        rows.append(row)
        report(Progress(done, done + 1, math.nan, math.nan, 0.0))
    return pd.DataFrame(rows).assign(sweep=name), {}


Row = dict[str, Any]


def grid(low: float, high: float, per_decade: int) -> list[int]:
    """Whole numbers from low to high, about so many a decade."""
    points = round(per_decade * math.log10(high / low)) + 1
    return list(dict.fromkeys(round(each) for each in np.geomspace(low, high, points)))


def _at(d: int, kappa: int) -> Iterator[Row]:
    """Bounds at their own best η; truths at that of corrected Theorem 2, with what both variants say there."""
    plain = Quadratic.of(Spectrum.confined(d, kappa), **_NOISE).setting(**RUN)
    here = plain.at(statement("theorem-2").best_eta(plain))
    said: dict[str, float] = {variant: sum(statement("theorem-2", variant).bound(here)) for variant in _COMPARED}
    # Spectra of effective rank κ, alike in every d but for zeros: L κ times; L once and L/10 for the rest of κL.
    spectra = {"measured, κ equal eigenvalues": Spectrum.confined(d, kappa)}
    small = 10 * (kappa - 1)
    if 0 < small < d - 1:
        spectra["measured, one large eigenvalue"] = Spectrum((1.0, 0.1, 0.0), (1, small, d - 1 - small))
    for series, spectrum in spectra.items():
        found = expected(Quadratic.of(spectrum, **_NOISE), here).average
        yield {"series": series, "d": d, "kappa": kappa, "value": found, "eta": here.eta, **said}
    for series, of in (
        ("Theorem 2, corrected", statement("theorem-2")),
        ("Theorem 2, stated", statement("theorem-2", "stated")),
        ("Theorem 1, corrected", statement("theorem-1-single")),
    ):
        eta = of.best_eta(plain)
        yield {"series": series, "d": d, "kappa": kappa, "value": sum(of.bound(plain.at(eta))), "eta": eta}


def _simulated(size: Sizes) -> Iterator[Row]:
    """The left figure's first measured series again, by sampled runs."""
    for d in (10, 10**3, 10**6, 10**9):
        quadratic = Quadratic.of(Spectrum.confined(d, KAPPA), **_NOISE)
        plain = quadratic.setting(**RUN)
        found = simulate(quadratic, plain.at(statement("theorem-2").best_eta(plain)), runs=size.runs, seed=_SEED)
        low, high = found.interval(0.95)
        yield {"d": d, "kappa": KAPPA, "value": found.value, "low": low, "high": high}


def _rounds(size: Sizes) -> Iterator[Row]:
    """Rounds to ε against each knob, the two others at 1; one kind of noise at a time."""
    for noise, name in (("σ", "sigma"), ("σ_G", "sigma_G")):
        loud: dict[str, Any] = {name: LOUD}
        quadratic = Quadratic.of(Spectrum.flat(SMALL_D), **loud)
        known: dict[Setting, Rounds] = {}  # where the knobs are all 1 it is one setting
        for knob, top in REACH.items():
            for at in itertools.takewhile(partial(operator.ge, top), (size.factor**n for n in itertools.count())):
                setting = quadratic.setting(**{"M": CLIENTS, knob: at})
                corrected = rounds_by_bound(statement(_CORRECTED[knob]), setting, EPSILON)
                if setting not in known:
                    known[setting] = rounds_of(quadratic, setting, EPSILON, bound=corrected)
                found = {
                    "measured": known[setting],
                    "corrected bound": corrected,
                    "stated bound": rounds_by_bound(statement("theorem-1", "stated"), setting, EPSILON),
                }
                for series, each in found.items():
                    yield {
                        "knob": knob,
                        "at": at,
                        "noise": noise,
                        "series": series,
                        "rounds": each.rounds,
                        "eta": each.eta,
                    }


def _largest(size: Sizes) -> Iterator[Row]:
    """Largest η by Theorem 1 as printed and corrected, and where f = ½L‖x‖² diverges."""
    stated = statement("theorem-1", "stated")
    for K in _MAP_K:
        corrected = statement("theorem-1-single" if K == 1 else "theorem-1")
        for P in dict.fromkeys(round(each) for each in np.geomspace(1, 10 * MAP_D, size.cells)):
            for m in dict.fromkeys(round(each) for each in np.geomspace(1, 1000, size.cells)):
                setting = Setting(d=MAP_D, L=1.0, K=K, P=P, m=m)
                sizes = stated.step_sizes(setting)
                yield {
                    "K": K,
                    "m": m,
                    "P": P,
                    "ratio": MAP_D / P,
                    "binding": sizes.binding,
                    "stated": sizes.largest,
                    "corrected": corrected.step_sizes(setting).largest,
                    "limit": stability_limit(setting),
                }


SWEEPS: Final[Mapping[str, Callable[[Sizes], Iterator[Row]]]] = {
    "by-d": lambda size: itertools.chain.from_iterable(_at(d, KAPPA) for d in grid(10, 1e9, size.per_decade)),
    "by-kappa": lambda size: itertools.chain.from_iterable(
        _at(_D_FIXED, kappa) for kappa in grid(1, _D_FIXED, size.per_decade)
    ),
    "simulated": _simulated,
    "rounds": _rounds,
    "step-sizes": _largest,
}


# --- trained models: the constants of the theorems estimated along the way --------------------------------------------

_PILOT: Final = 100  # seed of the run by whose constants η is chosen
MARGIN: Final = 0.5
"""The share of the largest η by the constants along the pilot run that is taken: other runs meet other constants."""


def training(size: Sizes, model: str) -> Work:
    """DeComFL on a small model, at the η that Theorem 2 allows by constants estimated at x_0, beside its bounds."""
    return Work(
        title=f"theory: {model} beside its bound",
        function=_trained,
        arguments={"size": size, "model": model},
        data=partial(digest_named, "digits"),
        layers=("hessian", "theory"),
        # A pass is worth about a fiftieth of one of the MNIST CNN.
        cost=0.02 * size.rounds * len(size.seeds) * 5 * 21 * 16 + 1e5,
    )


def _trained(folder: Path, report: Report, size: Sizes, model: str) -> Result:  # noqa: ARG001 (of the protocol)
    """A pilot run, η and μ by the constants along it, the runs, bounds by those along the first.

    Rows are of kind run, constant and bound; the model is trained on scikit-learn's digits.
    """
    dataset = load_dataset("digits")
    config = _config(model, size.rounds)
    runs, done = len(size.seeds) + 1, 0

    def follow(own: _Landscape) -> Iterator[Tensor]:
        """x_0, x_1, ..."""
        nonlocal done
        for _ in range(size.rounds):
            yield own.federation.x
            loss = own.federation.advance()
            done += 1
            report(Progress(done, runs * size.rounds + 1, loss, math.nan, 0.0))

    start = _Landscape(config.but(seed=_PILOT), dataset)
    at_start = _chosen(start.constants([start.federation.x]), 1.0)
    pilot = _Landscape(start.config.but(lr=cast(float, at_start.eta), mu=at_start.mu), dataset)
    # Rounds at which the constants are measured.
    measured = {0, size.rounds // 10, size.rounds // 3, size.rounds - 1}
    passed = [x.clone() for r, x in enumerate(follow(pilot)) if r in measured]
    chosen = _chosen(pilot.constants(passed), MARGIN)
    rows: list[Row] = []
    along = chosen
    for seed in size.seeds:
        own = _Landscape(config.but(lr=cast(float, chosen.eta), mu=chosen.mu, seed=seed), dataset)
        total, path = 0.0, []
        for r, x in enumerate(follow(own)):
            total += float((own.whole.gradient(x) ** 2).sum())
            rows.append({"kind": "run", "series": "measured", "seed": seed, "round": r + 1, "value": total / (r + 1)})
            if r in measured:
                path.append(x.clone())
        if seed == size.seeds[0]:
            along = replace(own.constants(path), eta=chosen.eta, mu=chosen.mu)
    resolved = torch.finfo(torch.float32).eps * along.D / along.mu
    numbers = {**along.values, "L at the start of the pilot": at_start.L, "rounding of g": resolved}
    rows += [{"kind": "constant", "series": name, "value": value} for name, value in numbers.items()]
    # Every bound at the run's own η, after some numbers of rounds; Theorem 1 also at the η that it allows itself.
    counts = grid(1, size.rounds, 8)
    single = statement("theorem-1-single")
    for series, of, eta in (
        ("Theorem 2, corrected", statement("theorem-2"), along.eta),
        ("Theorem 2, stated", statement("theorem-2", "stated"), along.eta),
        ("Theorem 1, corrected", single, single.step_sizes(along).largest),
    ):
        admitted = of.admits(along.at(cast(float, eta)))
        for R in counts:
            value = sum(of.bound(replace(along, R=R, eta=eta)))
            rows.append(
                {"kind": "bound", "series": series, "round": R, "value": value, "eta": eta, "admitted": admitted}
            )
    return pd.DataFrame(rows).assign(sweep="training", model=model), provenance(dataset)


def _chosen(constants: Setting, margin: float) -> Setting:
    """The setting at a share of corrected Theorem 2's largest η, at the μ whose terms are as large as all others."""
    theorem = statement("theorem-2")
    setting = constants.at(margin * theorem.step_sizes(constants).largest)
    return replace(setting, mu=theorem.best_mu(setting, share=1.0))


def _config(model: str, rounds: int) -> TrainConfig:
    return configuration(PATTERNS["theory"], {}, model=model, rounds=rounds)


class _Landscape:
    """The losses of a federation's clients, and the constants that the theorems have, measured at points."""

    BATCHES: Final = 8

    def __init__(self, config: TrainConfig, dataset: Dataset) -> None:
        federation, module, _ = build_federation(config, dataset)
        self.config = config
        self.federation = cast(DeComFLFederation, federation)
        self.objectives = [cast(ModuleObjective, client.objective) for client in self.federation.clients]
        self._loss = partial(MeanLoss, copy.deepcopy(module), cross_entropy)  # clients take theirs apart
        data = [(own.inputs, own.targets) for own in self.objectives]
        self.whole = self._loss(data, weights=[1.0] * len(data))  # f = (1/M) Σ f_i

    @cached_property
    def _batches(self) -> list[list[MeanLoss]]:
        """The losses of each client's first mini-batches."""
        return [[self._loss([own.batch(step)]) for step in range(self.BATCHES)] for own in self.objectives]

    def constants(self, points: Sequence[Tensor]) -> Setting:
        """The largest of every constant over the points. What lies between them is not seen.

        L: λ_max of the Hessians of mini-batches; κ: tr(∇²f)₊/L; σ²: mean squared distance of a mini-batch's gradient
        from its client's; σ_G: largest distance of a client's gradient from ∇f; D: f(x_0), as f ≥ 0.
        """
        found = pd.DataFrame([self._at(x) for x in points]).max()
        L, config = float(found["L"]), self.config
        return Setting(
            d=self.whole.d, L=L, kappa=max(1.0, float(found["trace"]) / L), sigma=float(found["sigma"]),
            sigma_G=float(found["sigma_G"]), D=self.whole(points[0]), m=config.sampled, M=config.clients,
            P=config.perturbations, R=config.rounds, distribution=config.distribution,
        )  # fmt: skip

    def _at(self, x: Tensor) -> dict[str, float]:
        whole = spectral_density(HessianOperator(self.whole, x), products=40, seed=_SEED)
        positive = whole.expectation(lambda values: np.maximum(values, 0.0))
        gradients = [
            self.whole.piece_gradient(x.detach().clone().requires_grad_(), piece) for piece in self.whole.pieces
        ]
        mean = torch.stack(gradients).mean(0)
        smooth, noise = whole.lambda_max, 0.0
        for batches, gradient in zip(self._batches, gradients, strict=True):
            deviations = [float(((batch.gradient(x) - gradient) ** 2).sum()) for batch in batches]
            noise = max(noise, float(np.mean(deviations)))
            smooth = max(smooth, effective_rank(HessianOperator(batches[0], x), products=8, seed=_SEED).norm)
        return {
            "L": smooth,
            "trace": whole.d * positive.value,
            "sigma": math.sqrt(noise),
            "sigma_G": max(float((gradient - mean).norm()) for gradient in gradients),
        }
