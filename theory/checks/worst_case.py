"""How tight is a statement? The instance with the largest left side over right side, sought in classes of problems."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from decomfl_lab.errors import InputError, Told, require_choice, require_int, require_possible
from theory.checks.search import Axis, Worst, instances, search
from theory.checks.verdict import Check, Source, check, ratio, require_statement, sides
from theory.notation.formula import names_in
from theory.notation.setting import Setting
from theory.notation.symbols import LETTERS
from theory.problems.bowls import Piecewise
from theory.problems.problem import Problem
from theory.problems.quadratic import Quadratic
from theory.problems.spectrum import Spectrum
from theory.problems.waves import Waves
from theory.statements.algorithms import decomfl
from theory.statements.statement import Statement

At = Mapping[str, float]  # the parameters of an instance, by the names of their axes
_ALONE: Final = ("D", "sigma", "sigma_G", "mu")
_HUGE: Final = 1e100
"""A step size above this is none."""
_RUNS: Final = 48
"""Simulated runs a point of a search; the instance that it finds is then simulated anew, with more."""
_JUDGED: Final = 4000
"""Simulated runs of that instance; where it is only asked whether the statement holds, a sixteenth may decide."""
_MOST: Final = 200_000
"""Simulated runs of it where so many are needed to decide,"""
_WORK: Final = 5e8
"""but no more than draw so many numbers."""


def _titled(family: str, alone: str) -> str:
    """What a search is called."""
    return f"{family}, {LETTERS.get(alone, alone)} alone" if alone else family


@dataclass(frozen=True)
class Instance:
    """The worst case of a search."""

    family: str  # the class of problems that was searched
    alone: str  # the constant of D, σ, σ_G, μ that alone is not 0; empty where all may be
    problem: Problem | Quadratic  # the problem
    setting: Setting  # its constants, those of the run included
    check: Check  # the statement's two sides there
    source: Source  # where the left side is from
    runs: int  # number of simulated runs that judged it
    seed: int  # the seed of these runs
    tried: int  # number of instances that were tried
    # The largest left/right of the search. The check's is smaller where an exact instance that refutes the statement
    # was made small, and another where it was simulated anew.
    largest: float

    @property
    def title(self) -> str:
        """The class of problems, and the constant that alone is not 0."""
        return _titled(self.family, self.alone)

    @property
    def ratio(self) -> float:
        """The largest left/right that counts: the search's where it is exact, the check's where it is simulated."""
        return self.largest if self.source == "exact" else self.check.ratio

    def python(self, statement: str) -> str:
        """Three lines of Python that repeat the check, of a statement that the expression ``statement`` gives."""
        with np.printoptions(floatmode="unique", threshold=10**9, linewidth=10**9):
            problem = repr(self.problem)
        more = "" if self.source == "exact" else f", source={self.source!r}, runs={self.runs}, seed={self.seed}"
        lines = (
            "import theory; from numpy import array; from theory import *; from decomfl_lab.plugins import named",
            f"statement = {statement}",
            f"print(theory.check(statement, {problem}, {self.setting!r}{more}))",
        )
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class Tightness(Told):
    """The worst cases of a statement."""

    statement: Statement  # the statement
    instances: tuple[Instance, ...]  # the worst case of each search that found one
    left_out: Mapping[str, str]  # class of problems -> why it has no instance

    @property
    def worst(self) -> Instance:
        """The one with the largest ratio, of those that the statement fails on if there are any."""
        return max(self.instances, key=lambda each: (each.check.holds is False, each.ratio))

    @property
    def holds(self) -> bool | None:
        """Whether the statement holds on the worst cases; None where that is undecided for one of them."""
        answers = {each.check.holds for each in self.instances}
        return False if False in answers else None if None in answers else True

    def __str__(self) -> str:
        return f"of {self.tried:,} instances the worst: {self.worst.check}"

    @property
    def tried(self) -> int:
        """Number of instances that were tried."""
        return sum(each.tried for each in self.instances)


def _run(statement: Statement, *, exact: bool) -> dict[str, Axis]:
    """Axes of a run, which is short enough to be simulated unless it is exact; lemmas have closed forms at K = 1."""
    kinds = len(statement.distributions)
    most: dict[str, float] = {"P": 30, "K": 8 if statement.left.path else 1, "m": 3, "more": 3, "R": 60}
    if exact:
        most = {"P": 1e5, "K": 100, "m": 100, "more": 1e3, "R": 1e5}
    return {
        "P": Axis(1, most["P"], whole=True),
        **({} if statement.single_step else {"K": Axis(1, most["K"], whole=True)}),
        "m": Axis(1, most["m"], whole=True),
        "more": Axis(0.3, most["more"], whole=True),  # M − m
        "R": Axis(1, most["R"], whole=True),
        "share": Axis(0.01, 3.0),  # of the largest η, which a quarter of the range stands for
        **({} if kinds == 1 else {"distribution": Axis(-0.49, kinds - 0.51, log=False, whole=True)}),
        **({"slowness": Axis(1e-2, 1.0)} if statement.with_momentum else {}),  # 1 − β
        **({} if statement.central else {"central": Axis(-0.49, 1.49, log=False, whole=True)}),
    }


def _setting(statement: Statement, problem: Problem | Quadratic, at: At, **constants: Any) -> Setting | None:
    """The constants of a run that the statement admits; None where it admits no η, or every."""
    setting = problem.setting(
        m=int(at["m"]), P=int(at["P"]), K=int(at.get("K", 1)), R=int(at["R"]), mu=at.get("mu", 0.0),
        distribution=statement.distributions[int(at.get("distribution", 0))], beta=1 - at.get("slowness", 1.0),
        central=bool(at.get("central", 1)), **constants,
    )  # fmt: skip
    share, symbols = min(1.0, at["share"]), statement.own(problem, setting)
    if statement.eta:
        eta = statement.step_sizes(setting, **symbols).largest * (share if statement.with_eta else 1.0)
    else:
        eta = share / (setting.L * setting.values["rho"] * setting.K)
    if not 0 < eta < _HUGE:
        return None
    setting = setting.at(eta)
    return replace(setting, mu=min(setting.mu, statement.largest_mu(setting, **symbols).largest))


@dataclass(frozen=True)
class Family:
    """A class of problems."""

    # parameters of an instance, for a statement and the constant that alone is not 0
    axes: Callable[[Statement, str], dict[str, Axis]]
    # the problem and the constants of a run at these parameters, None where no η is admitted
    instance: Callable[[Statement, At], tuple[Problem | Quadratic, Setting | None]]
    parts: bool = False  # whether it is searched for each constant alone, too


def _quadratic_axes(statement: Statement, alone: str) -> dict[str, Axis]:
    """The axes of ``_quadratic``; ``alone`` names the one constant of ``_ALONE`` that is not 0, "" for all."""
    # Whether the left side has a closed form there; a step of one's own is always simulated.
    exact = statement.step is decomfl and statement.left.is_exact(Quadratic.of(Spectrum((1.0,), (1,))))
    axes = {
        "top": Axis(1, 1e3 if exact else 10, whole=True),  # how often H has the eigenvalue L
        "low": Axis(0.3, 1e5 if exact else 20, whole=True),  # and one below
        "zero": Axis(0.3, 1e5, whole=True),  # and 0
        "curvature": Axis(1e-4, 1.0),
        "where": Axis(0.0, 0.999, log=False),  # the group of D, or of the constant that alone is not 0
        **_run(statement, exact=exact),
    }
    if alone:
        return axes | {alone: Axis(1.0, 1.0)}
    return axes | {name: Axis(1e-3, 1e3) for name in _ALONE} | {"elsewhere": Axis(0.0, 0.999, log=False)}


def _quadratic(statement: Statement, at: At) -> tuple[Quadratic, Setting | None]:
    """A Hessian of three levels; by linearity one group has all of D, one all of σ and σ_G in the worst case."""
    groups = [(value, int(at[name])) for name, value in (("top", 1.0), ("low", at["curvature"]), ("zero", 0.0))]
    values, counts = zip(*(each for each in groups if each[1]), strict=True)
    curved = sum(value > 0 for value in values)
    noise = int(at.get("elsewhere", at["where"]) * len(values))
    quadratic = Quadratic.of(
        Spectrum(values, counts), D=at.get("D", 0.0), sigma=at.get("sigma", 0.0), sigma_G=at.get("sigma_G", 0.0),
        start=np.eye(len(values))[int(at["where"] * curved)].tolist(), noise=np.eye(len(values))[noise].tolist(),
        dissimilarity=np.eye(len(values))[noise].tolist(),
    )  # fmt: skip
    if statement.variant is None and any("G" in names_in(each) for each in statement.terms.values()):
        raise InputError("G must be finite, which no gradient of a quadratic is")
    # G = 0: H dominates ∇²f everywhere, so no step leaves the range in which a bound of theory.bounds needs G.
    M = int(at["m"] + at["more"])
    return quadratic, _setting(statement, quadratic, at, M=M, G=0.0)


def _short(statement: Statement) -> dict[str, Axis]:
    """Axes of problems whose runs are simulated."""
    return _run(statement, exact=False) | {
        "d": Axis(1, 100, whole=True),
        "mu": Axis(1e-3, 3.0),
        "sigma": Axis(1e-3, 3.0),
        "sigma_G": Axis(1e-3, 3.0),
    }


def _waves(statement: Statement, at: At) -> tuple[Waves, Setting | None]:
    """Two cosines of one coordinate; those of the clients and of the noise have the first one's frequency."""
    problem = Waves(
        a=np.array([1.0, at["amplitude"]]), b=np.array([at.get("sigma_G", 0.0), 0.0]),
        s=np.array([at.get("sigma", 0.0), 0.0]), w=np.array([[1.0], [at["frequency"]]]),
        theta=np.array([at["phase"], at["second"]]), start=np.zeros(1), d=int(at["d"]), M=int(at["m"] + at["more"]),
    )  # fmt: skip
    return problem, _setting(statement, problem, at)


def _piecewise(statement: Statement, at: At) -> tuple[Piecewise, Setting | None]:
    problem = Piecewise(
        at=at["at"], fall=at["fall"], rest=at["rest"], noise=at.get("sigma", 0.0),
        dissimilarity=at.get("sigma_G", 0.0), d=int(at["d"]), M=int(at["m"] + at["more"]),
    )  # fmt: skip
    return problem, _setting(statement, problem, at)


_TURN: Final = Axis(0.0, 2 * math.pi, log=False)
FAMILIES: Final[Mapping[str, Family]] = {
    "quadratics": Family(_quadratic_axes, _quadratic, parts=True),
    "waves": Family(lambda statement, _: _short(statement) | {
        "amplitude": Axis(-1.0, 1.0, log=False), "frequency": Axis(0.2, 5.0), "phase": _TURN, "second": _TURN,
    }, _waves),
    "piecewise": Family(lambda statement, _: _short(statement) | {
        "fall": Axis(0.0, 1.0, log=False), "rest": Axis(0.0, 1.0, log=False), "at": Axis(0.01, 10.0),
    }, _piecewise),
}  # fmt: skip


def tightness(
    statement: Statement,
    families: tuple[str, ...] = tuple(FAMILIES),
    *,
    effort: int = 30,
    seed: int = 0,
    first: bool = False,
    watch: Callable[[str, int, int, float], None] | None = None,
) -> Tightness:
    """The largest left/right of a statement over classes of problems, by differential evolution.

    On quadratics both sides are exact. The left one is linear in D, σ², σ_G² and μ²; where the bound is too, the worst
    case has one of them alone: each is searched, and all together. On sums of cosines the left sides of lemmas are
    exact; others, those on piecewise quadratic losses, and those of a step of your own are simulated.

    Args:
        statement: One of ``theory.bounds``, or your own.
        families: Classes of problems, of quadratics, waves and piecewise.
        effort: Number of generations of a search on quadratics; where the left side is simulated a third of it.
        seed: The seed of the searches and simulations.
        first: Whether to stop at the first instance that refutes the statement.
        watch: Function that is told a search's name, its instances so far, the number of all, and the largest ratio.

    Raises:
        InputError: If the statement is none, a class is unknown, or none has an instance for the statement.
    """
    require_statement(statement)
    require_possible("effort", require_int("effort", effort, 1), operations=1e7 * effort)
    for name in families:
        require_choice("family", name, FAMILIES)
    found: list[Instance] = []
    left_out = {}
    # A class that has parts is searched with each of its constants alone, too.
    parts = [alone for alone in _ALONE if alone not in statement.without]
    searches = [(name, alone) for name in families for alone in (*(parts if FAMILIES[name].parts else ()), "")]
    for name, alone in searches:
        if first and any(each.check.holds is False for each in found):
            break
        try:
            instance = _worst(statement, name, alone, effort, seed, first, watch)
        except InputError as error:
            left_out[name] = str(error)
            continue
        if instance is not None:
            # The whole class has the instances of its parts too.
            largest = max(
                [instance, *(each for each in found if each.family == name and not alone)], key=lambda each: each.ratio
            )
            found.append(replace(largest, alone=alone, tried=instance.tried))
    if not found:
        reasons = "; ".join(dict.fromkeys(left_out.values())) or "both sides are 0 or no η is admitted"
        raise InputError(f"statement must have an instance in {', '.join(families)}, got {statement.title}: {reasons}")
    return Tightness(statement, tuple(found), left_out)


def _worst(
    statement: Statement,
    name: str,
    alone: str,
    effort: int,
    seed: int,
    first: bool,
    watch: Callable[[str, int, int, float], None] | None,
) -> Instance | None:
    """The worst case of one class; None where both sides are always 0."""
    family = FAMILIES[name]
    axes = {each: axis for each, axis in family.axes(statement, alone).items() if each not in statement.without}
    problem, setting = family.instance(statement, {each: axis.at(0.5) for each, axis in axes.items()})
    exact = statement.step is decomfl and statement.left.is_exact(problem)
    source: Source = "exact" if exact else "simulation"
    generations = effort if exact else max(1, effort // 3)
    if setting is not None:
        sides(statement, problem, setting, source=source, runs=2, seed=seed)  # refuses what the class has no way to

    tried, largest, every = 0, -math.inf, instances(axes, generations)

    def at_ratio(at: At) -> float:
        nonlocal tried, largest
        problem, setting = family.instance(statement, at)
        ratio_here = math.nan
        if setting is not None:
            estimate, terms = sides(statement, problem, setting, source=source, runs=_RUNS, seed=seed)
            ratio_here = ratio(estimate.value, math.fsum(terms.values()))
        tried += 1
        if ratio_here > largest:  # a NaN is no larger
            largest = ratio_here
        if watch is not None and tried <= every:  # not where a worst case that was found is made simple
            watch(_titled(name, alone), tried, every, largest)
        return ratio_here

    @cache
    def judged(*at: tuple[str, float]) -> tuple[Problem | Quadratic, Setting, Check, int]:
        """The instance with these parameters, simulated with as many runs as decide, or as many as can be."""
        problem, setting = family.instance(statement, dict(at))
        assert setting is not None
        numbers = setting.R * setting.K * setting.m * setting.P * len(problem.start)
        most = _JUDGED if exact else int(min(max(_WORK / numbers, _JUDGED), _MOST))
        runs = _JUDGED // 16 if first and not exact else _JUDGED
        while True:
            checked = check(statement, problem, setting, source=source, runs=runs, seed=seed + 1)
            if checked.holds is not None or runs == most:
                return problem, setting, checked, runs
            runs = min(max(4 * runs, 2 * checked.more), most)

    def told(worst: Worst) -> bool:
        """Whether the worst case so far refutes the statement, beyond rounding or by the interval of more runs."""
        return first and worst.ratio > 1 and judged(*worst.at.items())[2].holds is False

    worst = search(at_ratio, axes, seed=seed, effort=generations, watch=told)
    if math.isnan(worst.ratio):
        return None
    at = dict(worst.at)
    if exact and worst.ratio > 1:
        # As many least counts, zeros and ones as the worst case bears: they keep half of what it is above 1.
        enough = 1 + 0.5 * (min(worst.ratio, 2.0) - 1)
        for key, axis in [*axes.items()] * 3:
            simple = [axis.at(share) for share in (0.0, 0.25, 0.5)] if axis.whole else [0.0, 1.0]
            for value in simple:
                fits = value < at[key] if axis.whole else axis.low <= value <= axis.high
                if fits and at_ratio({**at, key: value}) >= enough:
                    at[key] = value
                    break
    problem, setting, found, runs = judged(*at.items())
    return Instance(name, alone, problem, setting, found, source, runs, seed + 1, worst.tried, worst.ratio)
