"""Does a statement hold on a problem? Its two sides as numbers, and an answer that may be "undecided"."""

import math
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from decomfl_lab.errors import InputError, Told, require, require_choice, require_int
from hessian.estimate import Estimate, require_confidence
from theory.checks import simulation
from theory.checks.probe import probe
from theory.notation.formula import written
from theory.notation.numbers import down
from theory.notation.setting import Setting
from theory.problems.problem import Bowl, Problem
from theory.problems.quadratic import Quadratic
from theory.statements.algorithms import decomfl
from theory.statements.statement import Statement

Source = Literal["exact", "simulation", "run"]
SOURCES: Final[tuple[str, ...]] = get_args(Source)
_RUN: Final = ("m", "M", "P", "K", "R", "eta", "mu", "distribution", "replacement", "G", "beta", "central")


@dataclass(frozen=True, repr=False)
class Check(Told):
    """measured ≤ bound?"""

    claim: str  # what was checked: the statement, its left side
    bounded_by: str  # the right side as a formula, and its terms at the constants of the run
    measured: float  # the left side
    stderr: float  # standard error of the left side; 0 where it is exact
    bound: float  # the right side
    ratio: float  # measured/bound; above 1 the statement fails. NaN where both are 0.
    holds: bool | None  # True or False where the numbers decide, None where the interval holds the bound
    source: Source  # where the left side is from: exact, simulation (numpy) or run (the lab's own algorithm)
    more: int = 0  # about how many runs in all would decide; 0 where these do

    def __str__(self) -> str:
        error = f" ± {self.stderr:.2g}" if self.stderr else ""
        answer = {True: "holds", False: "fails", None: f"undecided; about {self.more} runs would decide"}[self.holds]
        numbers = f"{self.measured:.6g}{error} ({self.source}) against {self.bound:.6g}, ratio {self.ratio:.4g}"
        return f"{self.claim}: {numbers}: {answer}\n  {self.bounded_by}"


_ROUNDING = 1e-9
"""Relative error allowed to closed forms in float64."""


def check(
    statement: Statement,
    problem: Problem | Quadratic,
    setting: Setting | None = None,
    *,
    source: Source = "exact",
    runs: int = 1000,
    seed: int = 0,
    confidence: float = 0.99,
    **run: Any,
) -> Check:
    """Check a statement on a problem.

    Args:
        statement: One of ``theory.bounds``, in either variant, or your own.
        problem: A problem with known constants. Those of a problem of your own are probed, see ``theory.probe``.
        setting: ``problem.setting(...)``, or larger constants than the problem's own; None to make it of ``run``.
        source: exact: closed forms (quadratics, lemmas on waves); simulation: numpy; run: the lab's server, clients,
            wire and noise stream.
        runs: How many independent runs are averaged, where not exact.
        seed: The seed of the runs.
        confidence: The confidence of the interval that decides, where not exact.
        run: Instead of a setting, its constants m, M, P, K, R, eta, mu, distribution, replacement, G. η is the largest
            that the statement allows and the distribution the first that it is made for, where they are left out.
            In any case the values of symbols of your own.

    Raises:
        InputError: If the statement or the problem is none, the step size or μ breaks a condition of the statement, the
            setting claims less than the problem has (or a probe of it finds) or stands beside constants of a run, or
            the source has no way to the left side.
    """
    require_statement(statement)
    for name in ("setting", "d", "M", "start", "sampled_gradient", "gradient") * (not isinstance(problem, Quadratic)):
        require(hasattr(problem, name), "problem", f"have {name}, see theory.Problem", type(problem).__name__)
    require_choice("source", source, SOURCES)
    require_confidence(confidence)
    require_int("runs", runs, 2)
    require_int("seed", seed, 0)
    for name in run:
        require_choice("constant", name, (*_RUN, *statement.symbols))
    given = {name: run.pop(name) for name in statement.symbols if name in run}
    if setting is not None:
        require(not run, "setting", f"not be given beside {', '.join(run)}", setting)
    else:
        # The problem's with these constants of a run.
        setting = problem.setting(**{"distribution": statement.distributions[0], "central": statement.central, **run})
        if setting.eta is None and statement.eta:
            setting = setting.at(statement.step_sizes(setting, **statement.own(problem, setting, **given)).largest)
    # The setting's constants cover the problem's.
    require(setting.d == problem.d, "d", f"be the problem's {problem.d}", setting.d)
    if not isinstance(problem, Quadratic):
        require(setting.clients == problem.M, "M", f"be the problem's {problem.M}", setting.clients)
    constants: Any = problem.setting()
    shared = isinstance(problem, Quadratic | Bowl) or problem.d == 1 or getattr(problem, "one_hessian", False)
    if statement.one_hessian and not shared:
        raise InputError(
            f"kappa must be that of one H that dominates every ±∇²f_i(·; ξ) for {statement.title}, which "
            f"{type(problem).__name__} does not say (a problem whose κ is that has one_hessian = True)"
        )
    for name in ("L", "D", "kappa", "sigma", "sigma_G", "H3", "Q"):
        least, claimed = getattr(constants, name), getattr(setting, name)
        if claimed is not None and (least is None or claimed < least * (1 - _ROUNDING)):
            known = "left out where the problem does not say it"
            known = known if least is None else f"at least the problem's {least:g}"
            raise InputError(f"{name} must be {known}, got {claimed:g}")
    if setting.alpha is not None and (constants.alpha is None or setting.alpha > constants.alpha * (1 + _ROUNDING)):
        known = "left out where the problem does not say it"
        known = known if constants.alpha is None else f"at most its {constants.alpha:g}"
        raise InputError(f"alpha must be {known}, got {setting.alpha:g}")
    if not isinstance(problem, Quadratic) and not type(problem).__module__.startswith("theory.problems."):
        probe(problem, setting, seed=seed)
    estimate, terms = sides(statement, problem, setting, source=source, runs=runs, seed=seed, **given)
    bound = math.fsum(terms.values())
    # By how much rounding may move the two sides: n ε Σ|terms|, with the n roundings that follow on one another. A left
    # side is a mean over samples of a sum over R rounds and the coordinates (or groups) that are held. x_r itself is a
    # sum of K steps a round, of P products each and a mean over m clients where it is simulated.
    step = 1 if source == "exact" else setting.P + setting.m
    n = estimate.samples + setting.R * (setting.K * step + len(problem.start)) + len(terms)
    room = n * sys.float_info.epsilon * math.fsum(map(abs, (estimate.value, *terms.values())))
    holds, more = decide(estimate, bound, confidence, room)
    formula = " + ".join(map(written, statement.terms.values()))
    numbers = ", ".join(f"{name} {number:.6g}" for name, number in terms.items())
    at = "" if setting.eta is None else f" at η = {down(setting.eta, 6 if statement.with_eta else 12)}"
    return Check(
        claim=f"{statement.title}, {statement.left}",
        bounded_by=f"{formula}{at}: {numbers}",
        measured=estimate.value,
        stderr=estimate.stderr,
        bound=bound,
        ratio=ratio(estimate.value, bound),
        holds=holds,
        source=source,
        more=more,
    )


def require_statement(statement: Any) -> None:
    """InputError unless it is a ``Statement``; that of a name is ``theory.statement(name)``."""
    rule = "be a theory.Statement, as theory.statement('theorem-1')"
    require(isinstance(statement, Statement), "statement", rule, statement)


def sides(
    statement: Statement,
    problem: Problem | Quadratic,
    setting: Setting,
    *,
    source: Source = "exact",
    runs: int = 1000,
    seed: int = 0,
    **given: float,
) -> tuple[Estimate, dict[str, float]]:
    """The left side, and the terms of the right one; the arguments are those of ``check``.

    Raises:
        InputError: If η or μ breaks a condition of the statement, or the source has no way to the left side.
    """
    symbols = statement.own(problem, setting, **given)
    # η and μ must keep the conditions; a bound that is made for the largest η is checked there.
    if statement.eta:
        eta, mu = statement.step_sizes(setting, **symbols), statement.largest_mu(setting, **symbols)
        if not statement.admits(setting, **symbols):
            limits = [f"eta must be at most {down(eta.largest, 6)} ({eta.binding})"]
            limits += [f"mu at most {down(mu.largest, 6)} ({mu.binding})"] if mu.binding else []
            used = f"{setting.eta:.6g}" + (f" and {setting.mu:.6g}" if mu.binding else "")
            raise InputError(f"{' and '.join(limits)} for {statement.title}, got {used}")
        if not statement.with_eta and (setting.eta or 0.0) < eta.largest * (1 - _ROUNDING):
            raise InputError(f"eta must be {down(eta.largest, 12)}, the largest admissible, for {statement.name}")
    left = statement.left
    known = statement.step is (left.step if source == "exact" else decomfl)
    require(known or source == "simulation", "source", f"be simulation for {statement.name}: a step of its own", source)
    if source == "exact":
        measured = left.exact(problem, setting)
        estimate = Estimate(measured.value, 0.0, 0)
        symbols = {**symbols, **measured.point}
    elif left.path is None:
        raise InputError(f"source must be exact for {left}, which no run shows, got {source!r}")
    elif source == "simulation":
        estimate = simulation.simulate(
            problem, setting, runs=runs, seed=seed, left=left.path, step=statement.step, with_eta=left.step is decomfl
        )
    else:
        estimate = simulation.run(problem, setting, runs=runs, seed=seed, left=left.path)
    return estimate, dict(zip(statement.terms, statement.bound(setting, **symbols), strict=True))


def decide(estimate: Estimate, bound: float, confidence: float, room: float = 0.0) -> tuple[bool | None, int]:
    """Whether the estimated number is at most ``bound``, or None; and then about how many samples would tell.

    The half-width falls as 1/√n, so n (half-width/distance)² samples bring it down to the distance from the bound.
    ``room`` is by how much rounding may move the two numbers.
    """
    if math.isinf(estimate.value):  # a run diverged
        return (False, 0) if math.isfinite(bound) else (None, 0)
    low, high = estimate.interval(confidence)
    if high <= bound + room:
        return True, 0
    if low > bound + room:
        return False, 0
    distance = abs(estimate.value - bound)
    if distance == 0:
        return None, 100 * estimate.samples
    return None, math.ceil(estimate.samples * ((high - low) / (2 * distance)) ** 2)


def ratio(measured: float, bound: float) -> float:
    """measured/bound, above 1 where measured > bound; NaN where both are 0, infinite where the bound alone is.

    Where the left side is negative, as that of a bound from below is, it is bound/measured.
    """
    if measured < 0 and bound <= 0:
        return bound / measured
    if bound:
        return measured / bound
    return math.inf if measured else math.nan
