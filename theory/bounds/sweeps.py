"""Exact values in d, κ, m, P, K and η beside the bounds: the tables behind the figures of the report's part theory."""

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from theory.bounds import statement
from theory.checks.rounds import Rounds, rounds_by_bound, rounds_of, stability_limit
from theory.checks.simulation import simulate
from theory.notation.setting import Setting, Variant
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum

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

Row = dict[str, Any]


class SweepSizes(NamedTuple):
    """How fine sweeps are: settings of the part theory (``scales.toml``)."""

    per_decade: int  # values of d and κ a decade
    runs: int  # simulated runs a point
    factor: int  # between two values of m, P or K
    cells: int  # of a step-size map along each axis


def grid(low: float, high: float, per_decade: int) -> list[int]:
    """Whole numbers from low to high, about so many a decade."""
    points = round(per_decade * math.log10(high / low)) + 1
    return list(dict.fromkeys(round(value) for value in np.geomspace(low, high, points)))


def _at(d: int, kappa: int) -> Iterator[Row]:
    """Bounds at their own best η; truths at that of corrected Theorem 2, with what both variants say there."""
    plain = Quadratic.of(Spectrum.confined(d, kappa), **_NOISE).setting(**RUN)
    here = plain.at(statement("theorem-2").best_eta(plain))
    bounds: dict[str, float] = {variant: sum(statement("theorem-2", variant).bound(here)) for variant in _COMPARED}
    # Spectra of effective rank κ, alike in every d but for zeros: L κ times; L once and L/10 for the rest of κL.
    spectra = {"measured, κ equal eigenvalues": Spectrum.confined(d, kappa)}
    small = 10 * (kappa - 1)
    if 0 < small < d - 1:
        spectra["measured, one large eigenvalue"] = Spectrum((1.0, 0.1, 0.0), (1, small, d - 1 - small))
    for series, spectrum in spectra.items():
        average = expected(Quadratic.of(spectrum, **_NOISE), here).average
        yield {"series": series, "d": d, "kappa": kappa, "value": average, "eta": here.eta, **bounds}
    for series, theorem in (
        ("Theorem 2, corrected", statement("theorem-2")),
        ("Theorem 2, stated", statement("theorem-2", "stated")),
        ("Theorem 1, corrected", statement("theorem-1-single")),
    ):
        eta = theorem.best_eta(plain)
        yield {"series": series, "d": d, "kappa": kappa, "value": sum(theorem.bound(plain.at(eta))), "eta": eta}


def _simulated(size: SweepSizes) -> Iterator[Row]:
    """The left figure's first measured series again, by sampled runs."""
    for d in (10, 10**3, 10**6, 10**9):
        quadratic = Quadratic.of(Spectrum.confined(d, KAPPA), **_NOISE)
        plain = quadratic.setting(**RUN)
        average = simulate(quadratic, plain.at(statement("theorem-2").best_eta(plain)), runs=size.runs, seed=_SEED)
        low, high = average.interval(0.95)
        yield {"d": d, "kappa": KAPPA, "value": average.value, "low": low, "high": high}


def _rounds(size: SweepSizes) -> Iterator[Row]:
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
                by_series = {
                    "measured": known[setting],
                    "corrected bound": corrected,
                    "stated bound": rounds_by_bound(statement("theorem-1", "stated"), setting, EPSILON),
                }
                where = {"knob": knob, "at": at, "noise": noise}
                for series, needed in by_series.items():
                    yield {**where, "series": series, "rounds": needed.rounds, "eta": needed.eta}


def _largest(size: SweepSizes) -> Iterator[Row]:
    """Largest η by Theorem 1 as printed and corrected, and where f = ½L‖x‖² diverges."""
    stated = statement("theorem-1", "stated")
    for K in _MAP_K:
        corrected = statement("theorem-1-single" if K == 1 else "theorem-1")
        for P in dict.fromkeys(round(value) for value in np.geomspace(1, 10 * MAP_D, size.cells)):
            for m in dict.fromkeys(round(value) for value in np.geomspace(1, 1000, size.cells)):
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


SWEEPS: Final[Mapping[str, Callable[[SweepSizes], Iterator[Row]]]] = {
    "by-d": lambda size: itertools.chain.from_iterable(_at(d, KAPPA) for d in grid(10, 1e9, size.per_decade)),
    "by-kappa": lambda size: itertools.chain.from_iterable(
        _at(_D_FIXED, kappa) for kappa in grid(1, _D_FIXED, size.per_decade)
    ),
    "simulated": _simulated,
    "rounds": _rounds,
    "step-sizes": _largest,
}
