"""Figures of the theory: bounds beside what is true, in d, κ, m, P, K and η; and beside a model really trained."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import hessian
import theory
from decomfl_lab.config import TrainConfig
from decomfl_lab.data import Dataset, load_dataset
from decomfl_lab.files import write_atomically
from decomfl_lab.objective import ModuleObjective
from decomfl_lab.simulation import DeComFLFederation
from decomfl_lab.training import Progress, build_federation, code_version, read_provenance, write_provenance
from figures.theory import CONDITIONS, LINES, dimension_free, speed_ups, step_sizes, training
from hessian.curvature import HessianOperator
from hessian.effective_rank import effective_rank
from hessian.mean_loss import MeanLoss
from paper_repro.claims import Claim, Verdict
from paper_repro.part import Made, Options, rendered
from paper_repro.report import Section
from paper_repro.runs import Work
from paper_repro.scales import THEORY_SCALES, TheoryScale, kind
from theory.bounds import statement
from theory.quadratic import Quadratic, expected
from theory.rounds import rounds_by_bound, rounds_of, stability_limit
from theory.setting import Setting
from theory.simulate import simulate
from theory.spectrum import Spectrum

__all__ = ["claims", "jobs", "make"]

KAPPA: Final = 10
"""Held fixed while d grows."""
D_FIXED: Final = 10**6
"""Held fixed while κ grows."""
FLAT_FROM, FLAT_WITHIN = 1000, 0.05
_RUN: Final[Mapping[str, Any]] = {"m": 10, "M": 100, "P": 10, "R": 1000, "law": "sphere"}
_NOISE: Final[Mapping[str, Any]] = {"D": 1.0, "sigma": 1.0, "sigma_G": 1.0}

SMALL_D, EPSILON, LOUD = 16, 0.1, 8.0
"""Of the speed-ups: parameters, ε [F²/X²] and σ or σ_G [F/X], with L = 1 and D = 1."""
_REACH: Final = {"m": 256, "P": 16384, "K": 256}
_CLIENTS: Final = 4096
_MAP_D: Final = 10_000
_MAP_K: Final = (1, 4, 16)

_SEED: Final = 0


# --- what is computed -------------------------------------------------------------------------------------------------


def jobs(options: Options) -> list[Work]:
    """The sweeps of each figure, and the training of each model."""
    size = THEORY_SCALES[options.scale]
    return [
        *(SweepWork(name, size, f"theory: {name}") for name in _SWEEPS),
        *(TrainingWork(size, model, f"theory: {model} beside its bound") for model in size.models),
    ]


def _key(*what: Any) -> str:
    code = [code_version(), *(code_version(Path(str(each.__file__)).parent) for each in (hessian, theory))]
    own = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=6).hexdigest()
    return f"theory-{hashlib.blake2b(json.dumps([*what, code, own]).encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True)
class SweepWork:
    """A table of exact values, one of ``_SWEEPS``.

    Attributes:
        name: Which.
        size: How fine.
        title: Of its progress bar.
    """

    name: str
    size: TheoryScale
    title: str

    def key(self) -> str:
        """See ``Work``: name, sizes and the code."""
        return _key(self.name, asdict(self.size))

    def cost(self) -> float:
        """See ``Work``: seconds, as a pass of the MNIST CNN takes about 0.1 ms."""
        return 1e5

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for done, row in enumerate(_SWEEPS[self.name](self.size), 1):
            rows.append(row)
            report(Progress(done, done + 1, math.nan, math.nan, 0.0))
        write_atomically(folder / "rows.csv", pd.DataFrame(rows).assign(sweep=self.name).to_csv(index=False))
        report(Progress(len(rows), len(rows), math.nan, math.nan, 0.0))
        return f"{len(rows)} rows"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: the rows; nothing but code made them."""
        return pd.read_csv(folder / "rows.csv"), {}


Row = dict[str, Any]


def _grid(low: float, high: float, per_decade: int) -> list[int]:
    points = round(per_decade * math.log10(high / low)) + 1
    return list(dict.fromkeys(round(each) for each in np.geomspace(low, high, points)))


def _spectra(d: int, kappa: int) -> dict[str, Spectrum]:
    return {
        "measured, κ equal eigenvalues": Spectrum.confined(d, kappa),
        "measured, one large eigenvalue": Spectrum.two_level(d, kappa),
    }


def _at(d: int, kappa: int) -> Iterator[Row]:
    """Bounds at their own best η; truths at that of corrected Theorem 2."""
    plain = Quadratic.of(Spectrum.confined(d, kappa), **_NOISE).setting(**_RUN)
    best = statement("theorem-2").best_eta(plain)
    for series, spectrum in _spectra(d, kappa).items():
        found = expected(Quadratic.of(spectrum, **_NOISE), plain.at(best)).average
        yield {"series": series, "d": d, "kappa": kappa, "value": found, "eta": best}
    for series, of in (
        ("Theorem 2, corrected", statement("theorem-2")),
        ("Theorem 2, stated", statement("theorem-2", "stated")),
        ("Theorem 1, corrected", statement("theorem-1-single")),
    ):
        eta = of.best_eta(plain)
        yield {"series": series, "d": d, "kappa": kappa, "value": sum(of.bound(plain.at(eta))), "eta": eta}


def _by_d(size: TheoryScale) -> Iterator[Row]:
    for d in _grid(10, 1e9, size.per_decade):
        yield from _at(d, KAPPA)


def _by_kappa(size: TheoryScale) -> Iterator[Row]:
    for kappa in _grid(1, D_FIXED, size.per_decade):
        yield from _at(D_FIXED, kappa)


def _simulated(size: TheoryScale) -> Iterator[Row]:
    """The left figure's first measured series again, by sampled runs."""
    for d in (10, 10**3, 10**6, 10**9):
        quadratic = Quadratic.of(Spectrum.confined(d, KAPPA), **_NOISE)
        plain = quadratic.setting(**_RUN)
        found = simulate(quadratic, plain.at(statement("theorem-2").best_eta(plain)), runs=size.runs, seed=_SEED)
        low, high = found.interval(0.95)
        yield {"d": d, "kappa": KAPPA, "value": found.value, "low": low, "high": high}


def _rounds(size: TheoryScale) -> Iterator[Row]:
    """Rounds to ε against each knob, the two others at 1; one kind of noise at a time."""
    for noise, name in (("σ", "sigma"), ("σ_G", "sigma_G")):
        loud: dict[str, Any] = {name: LOUD}
        quadratic = Quadratic.of(Spectrum.flat(SMALL_D), **loud)
        for knob, top in _REACH.items():
            for power in range(round(math.log(top, size.factor)) + 1):
                at = size.factor**power
                setting = quadratic.setting(**{"M": _CLIENTS, knob: at})
                corrected = rounds_by_bound(
                    statement("theorem-1-single" if setting.K == 1 else "theorem-1"), setting, EPSILON
                )
                found = {
                    "measured": rounds_of(quadratic, setting, EPSILON, bound=corrected),
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


def _largest(size: TheoryScale) -> Iterator[Row]:
    """Largest η by Theorem 1 as printed and corrected, and where f = ½L‖x‖² diverges."""
    stated = statement("theorem-1", "stated")
    for K in _MAP_K:
        corrected = statement("theorem-1-single" if K == 1 else "theorem-1")
        for P in dict.fromkeys(round(each) for each in np.geomspace(1, 10 * _MAP_D, size.cells)):
            for m in dict.fromkeys(round(each) for each in np.geomspace(1, 1000, size.cells)):
                setting = Setting(d=_MAP_D, L=1.0, K=K, P=P, m=m)
                sizes = stated.step_sizes(setting)
                yield {
                    "K": K,
                    "m": m,
                    "P": P,
                    "ratio": _MAP_D / P,
                    "binding": sizes.binding,
                    "stated": sizes.largest,
                    "corrected": corrected.step_sizes(setting).largest,
                    "limit": stability_limit(setting),
                }


_SWEEPS: Final[Mapping[str, Callable[[TheoryScale], Iterator[Row]]]] = {
    "by-d": _by_d,
    "by-kappa": _by_kappa,
    "simulated": _simulated,
    "rounds": _rounds,
    "step-sizes": _largest,
}


@dataclass(frozen=True)
class TrainingWork:
    """DeComFL on a small model, at the η that Theorem 2 allows by constants estimated at x_0, beside its bounds.

    Attributes:
        size: Rounds and seeds.
        model: Trained on scikit-learn's digits.
        title: Of its progress bar.
    """

    size: TheoryScale
    model: str
    title: str

    def key(self) -> str:
        """See ``Work``: sizes, model, data and the code."""
        return _key(self.model, asdict(self.size), load_dataset("digits").digest)

    def cost(self) -> float:
        """See ``Work``: a pass is worth about a fiftieth of one of the MNIST CNN."""
        return 0.02 * self.size.rounds * len(self.size.seeds) * 5 * 21 * 16 + 1e5

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``: constants at x_0, η and μ of these, the runs, constants along the first of them, bounds."""
        folder.mkdir(parents=True, exist_ok=True)
        dataset = load_dataset("digits")
        config = _config(self.model, self.size.rounds)
        start = _Landscape(config, dataset)
        x = start.federation.x.clone()
        first = start.constants([x])
        theorem = statement("theorem-2")
        eta = theorem.step_sizes(first).largest
        mu = theorem.best_mu(first.at(eta))
        rows, path = [], [x]
        for seed in self.size.seeds:
            own = _Landscape(replace(config, lr=eta, mu=mu, seed=seed), dataset)
            total = 0.0
            for r in range(self.size.rounds):
                total += float((own.whole.gradient(own.federation.x) ** 2).sum())
                rows.append(
                    {"kind": "run", "series": "measured", "seed": seed, "round": r + 1, "value": total / (r + 1)}
                )
                loss = own.federation.advance()
                if seed == self.size.seeds[0] and r + 1 in _checkpoints(self.size.rounds):
                    path.append(own.federation.x.clone())
                report(Progress(r + 1, self.size.rounds + 1, loss, math.nan, 0.0))
        along = replace(start.constants(path), eta=eta, mu=mu)
        for name, value in along.values.items():
            rows.append({"kind": "constant", "series": name, "value": value})
        rows.append({"kind": "constant", "series": "L at the start", "value": first.L})
        rows += list(_bounds(along, self.size.rounds))
        write_atomically(
            folder / "rows.csv", pd.DataFrame(rows).assign(sweep="training", model=self.model).to_csv(index=False)
        )
        write_provenance(folder, dataset)
        return f"{self.size.rounds} rounds"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: rows of kind run, constant and bound."""
        return pd.read_csv(folder / "rows.csv"), read_provenance(folder)


def _checkpoints(rounds: int) -> tuple[int, ...]:
    """Where, beside the start, the constants are measured."""
    return tuple(sorted({max(1, rounds // 10), max(1, rounds // 3), rounds}))


def _config(model: str, rounds: int) -> TrainConfig:
    return TrainConfig(
        method="decomfl",
        model=model,
        data="digits",
        split="dirichlet",
        clients=10,
        sampled=5,
        rounds=rounds,
        local_steps=1,
        perturbations=20,
        momentum=0.0,
        weight_decay=0.0,
        estimator="forward",
        distribution="sphere",
        batch_size=16,
        rebuild="copy",
    )


class _Landscape:
    """The losses of a federation's clients, and the constants that the theorems have, measured at points."""

    BATCHES: Final = 8

    def __init__(self, config: TrainConfig, dataset: Dataset) -> None:
        federation, module, _ = build_federation(config, dataset)
        self.config = config
        self.federation = cast(DeComFLFederation, federation)
        self.objectives = [cast(ModuleObjective, client.objective) for client in self.federation.clients]
        self._loss = partial(MeanLoss, module, cross_entropy)
        data = [(own.inputs, own.targets) for own in self.objectives]
        self.whole = self._loss(data, weights=[1.0] * len(data))  # f = (1/M) Σ f_i

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
            P=config.perturbations, R=config.rounds, law=config.distribution,
        )  # fmt: skip

    def _at(self, x: Tensor) -> dict[str, float]:
        whole = effective_rank(HessianOperator(self.whole, x), products=40, probe_steps=5, seed=_SEED)
        positive = whole.kappa_positive
        assert positive is not None  # measured by the probes' steps
        gradients = [self.whole.piece_gradient(_leaf(x), piece) for piece in self.whole.pieces]
        mean = torch.stack(gradients).mean(0)
        smooth, noise = whole.lambda_max, 0.0
        for own, gradient in zip(self.objectives, gradients, strict=True):
            deviations = []
            for step in range(self.BATCHES):
                batch = self._loss([own.batch(step)])
                deviations.append(float(((batch.gradient(x) - gradient) ** 2).sum()))
            noise = max(noise, float(np.mean(deviations)))
            steep = effective_rank(HessianOperator(self._loss([own.batch(0)]), x), products=8, seed=_SEED)
            smooth = max(smooth, steep.norm)
        return {
            "L": smooth,
            "trace": whole.lambda_max * positive.value,
            "sigma": math.sqrt(noise),
            "sigma_G": max(float((gradient - mean).norm()) for gradient in gradients),
        }


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _bounds(setting: Setting, rounds: int) -> Iterator[Row]:
    """Every bound at the run's own η, after some numbers of rounds; Theorem 1 also at the η that it allows itself."""
    counts = _grid(1, rounds, 8)
    single = statement("theorem-1-single")
    for series, of, eta in (
        ("Theorem 2, corrected", statement("theorem-2"), setting.eta),
        ("Theorem 2, stated", statement("theorem-2", "stated"), setting.eta),
        ("Theorem 1, corrected", single, single.step_sizes(setting).largest),
    ):
        admitted = of.admits(setting.at(cast(float, eta)))
        for R in counts:
            value = sum(of.bound(replace(setting, R=R, eta=eta)))
            yield {"kind": "bound", "series": series, "round": R, "value": value, "eta": eta, "admitted": admitted}
