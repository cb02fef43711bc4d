"""The search for a step size, and for the number of directions: a function from a run to one with the numbers.

On a quadratic with Hessian H ⪰ 0 DeComFL is stable in mean square where S(h) < 1, with h = η/(1 − β) and

    S(h) = Σ_j hλ_j/(2P − chλ_j),   c = 1 + P(1 − β)/(1 + β)                              (Gaussian directions)

(``theory.checks.stability``). What second differences along the clients' directions say of the spectrum, t_1 = tr(H)
and F = ‖H‖_F, bounds it, whatever the rest of the spectrum is:

    S(h) ≤ S̄(h) = h(t_1 − F)/(2P) + hF/(2P − chF).

The step is the h at which S̄(h) = 1/2. A loss that is no quadratic has another Hessian on its way, which depends on the
step; so rounds are rehearsed, and the step is one that keeps S̄(h) ≤ 1/2 all along its own way (docs/tuning.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from decomfl_lab.errors import DivergedError, InputError, require
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, UpdateRule

if TYPE_CHECKING:
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.runs.preparation import Prepared

AUTO: Final = "auto"
"""What users write instead of a number that is to be searched."""
CHOSEN: Final = ("lr", "perturbations")
"""What can be searched."""

SHARE: Final = 0.5
"""How much of the stability is used up: on equal eigenvalues, d ≫ P, the fastest descent is there."""
SURPLUS: Final = 1.1
"""Forward passes of a chosen P, in multiples of the fewest."""
MOST: Final = 1000
"""The largest P that is chosen."""
STAGE: Final = 10
"""Rounds between two looks at the curvature."""
STAGES: Final = 10
"""Stages of a rehearsal."""
SAMPLED: Final = 2
"""Clients that rehearse a round: two, as their common second differences are free of the batches' scatter."""
SMALLER: Final = 0.7
"""Where a rehearsal fails, the next one's step is what that one's curvature admits, but at least so many times it."""
ATTEMPTS: Final = 60
REACH: Final = 0.02
"""The least μ of a rehearsal, in multiples of the root mean square of x_0: second differences divide by μ², so that at
a smaller one the rounding of losses hides the curvature (2 · 10⁻⁷f/μ² in float32)."""
FIRST: Final = 20
"""The directions along which the curvature at x_0 is measured where P is still to be chosen."""

Begin = Callable[[float, int], "DeComFLFederation"]


def largest_step(trace: float, frobenius: float, *, P: int, beta: float = 0.0) -> float:
    """The h = η/(1 − β) at which S̄(h) = 1/2, in X²/F; infinite where there is no curvature.

        S̄(h) = h(t_1 − F)/(2P) + hF/(2P − chF),   c = 1 + P(1 − β)/(1 + β)

    Args:
        trace: t_1 = tr(H); a smaller one than F, which no H ⪰ 0 has, is taken for F.
        frobenius: F = ‖H‖_F.
        P: The number of directions.
        beta: The momentum β in torch's form.
    """
    trace, c = max(trace, frobenius), 1.0 + P * (1.0 - beta) / (1.0 + beta)
    if trace <= 0:
        return math.inf
    # With u = h/(2P): u(t_1 − F)(1 − ucF) + uF = s(1 − ucF), whose smaller root is the one below the pole 1/(cF).
    b = trace + SHARE * c * frobenius
    return 4.0 * P * SHARE / (b + math.sqrt(b * b - 4.0 * SHARE * c * frobenius * (trace - frobenius)))


def cheapest_directions(trace: float, frobenius: float) -> int:
    """The largest P in 3..1000 for which P/h(P), and so the forward passes in all, is at most 1.1/h(1); 3 if none is.

    h(P) is ``largest_step`` without momentum, which helps only a goal that is many rounds away. Rounds go as 1/h(P) and
    passes as P/h(P), about t_1 + (P + 1)F²/(2t_1), which grows with P slowly while P is small beside (t_1/F)²: so the
    fewest rounds that cost no more than a tenth of the passes.
    """
    most = SURPLUS / largest_step(trace, frobenius, P=1)
    fine = [P for P in range(3, MOST + 1) if P / largest_step(trace, frobenius, P=P) <= most]
    return max(fine, default=3)


@dataclass(frozen=True)
class Seen:
    """What a stage showed."""

    trace: float  # tr(H), mean over the stage
    frobenius: float  # ‖H‖_F
    kappa: tuple[float, float]  # a bracket of κ for H of any sign
    gradient: float  # the norm of the mean over clients of ∇f_i(x; ξ), from the scalars, Σ g² / P


@dataclass(frozen=True)
class Tuning:
    """The choice, and what was measured; ``str`` says it in a line."""

    lr: float  # the learning rate η, of two digits
    P: int  # the number of directions
    h: float  # the step η/(1 − β), before rounding
    seen: Seen  # the stage of the last rehearsal that admits the least
    rounds: int  # the rounds that were rehearsed, in all attempts
    passes: int  # the forward passes that they took

    def __str__(self) -> str:
        seen = self.seen
        return (
            f"lr = {self.lr:g} with P = {self.P}: at h = {self.h:.2g} no more than {SHARE:g} of the stability is used "
            f"up in {STAGES * STAGE} rehearsed rounds, where at worst tr(H) = {seen.trace:.3g}, ‖H‖_F = "
            f"{seen.frobenius:.3g}, κ in {seen.kappa[0]:.3g} .. {seen.kappa[1]:.3g} and ‖∇f‖ = {seen.gradient:.3g}; "
            f"all attempts took {self.rounds} rounds, {self.passes:,} forward passes"
        )


def rehearse(begin: Begin, P: int | None, rule: UpdateRule) -> Tuning:
    """The largest step that was found to keep S̄(h) ≤ 1/2 on its own way.

    The curvature at x_0 gives the first step. Rounds are played with it, and every 10 of them the curvature is looked
    at; as soon as the step is above what it admits, everything begins again at x_0 with a smaller one.

    Args:
        begin: It makes a federation at x_0 of a learning rate and a P, with clients that measure second differences.
        P: The number of directions; None to choose it by the curvature at x_0.
        rule: The rule, plain SGD or with momentum.

    Raises:
        InputError: If the rule is another one, the loss has no curvature at x_0, or 60 steps failed.
    """
    # β, and η/h: 1 − β where a constant gradient moves x by η/(1 − β) in the end.
    inner = rule.rule if isinstance(rule, LowPrecision) else rule
    plain = type(inner) in (Sgd, Momentum)  # and no class derived from them, which may do something else
    require(plain, "rule", "be sgd with lr auto, whose condition is that of sgd and momentum", inner)
    beta, factor = 0.0, 1.0
    if isinstance(inner, Momentum):
        beta = inner.beta
        factor = 1.0 - beta if inner.convention == "torch" else 1.0
    rounds = passes = 0

    def stages(h: float, P: int, number: int) -> Iterator[Seen | None]:
        """What the rounds of each stage show; None at last if they diverge."""
        nonlocal rounds, passes
        federation = begin(h * factor, P)
        assert federation.curvature is not None
        for _ in range(number):
            rounds += STAGE
            passes += STAGE * federation.server.m * federation.server.K * (2 * P + 1)
            federation.curvature.steps.clear()
            squares = []
            try:
                for _ in range(STAGE):
                    federation.advance()
                    (record,) = federation.server.history.since(federation.round - 1)
                    squares.append(float((record.scalars.astype(float) ** 2).mean()))
            except DivergedError:
                yield None
                return
            row = federation.curvature.columns()
            kappa = row["kappa_low"], row["kappa_high"]
            gradient = math.sqrt(math.fsum(squares) / len(squares))
            yield Seen(row["hessian_trace"], row["hessian_frobenius"], kappa, gradient)

    still = next(stages(1e-30, P or FIRST, 1))  # moves x by less than its last bit
    curved = still is not None and math.isfinite(largest_step(still.trace, still.frobenius, P=1, beta=beta))
    require(curved, "lr", "be a number where the loss shows no curvature at x_0", AUTO)
    assert still is not None
    P = P or cheapest_directions(still.trace, still.frobenius)
    h = largest_step(still.trace, still.frobenius, P=P, beta=beta)
    for _ in range(ATTEMPTS):
        admitted, worst = math.inf, still
        for seen in stages(h, P, STAGES):
            step = 0.0 if seen is None else largest_step(seen.trace, seen.frobenius, P=P, beta=beta)
            if seen is not None and step < admitted:
                admitted, worst = step, seen
            if step < h:
                h = max(step, SMALLER * h)
                break
        else:
            return Tuning(float(f"{h * factor:.2g}"), P, h, worst, rounds, passes)
    raise InputError(f"lr must be a number where no step is stable, got auto, which came down to {h * factor:.2g}")


def without_auto(values: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options that have a value, and the names of those that ``tuned`` is to choose.

    InputError if P is to be chosen and the learning rate is not.
    """
    wanted = frozenset(name for name in CHOSEN if isinstance(values.get(name), str) and values[name] == AUTO)
    lr = values.get("lr", "its default")
    require(not wanted or "lr" in wanted, "lr", "be auto where perturbations is, as they are chosen together", lr)
    return {name: value for name, value in values.items() if name not in wanted}, wanted


def tuned(start: Prepared, wanted: Collection[str] = CHOSEN) -> tuple[Prepared, Tuning | None]:
    """The run with numbers that were searched for what is wanted, and how they were found; itself for nothing.

    What is rehearsed is the run itself with two sampled clients, their scalars averaged, and central differences. All
    of it happens here, before round 0: nothing is sent.

    Args:
        start: The run, with any number for what is wanted.
        wanted: lr, or lr and perturbations.

    Raises:
        InputError: If the run cannot be tuned so; the message names the option that is in the way.
    """
    if not wanted:
        return start, None
    config, method = start.config, start.config.method
    P = None if "perturbations" in wanted else method.sizes.get("P", FIRST)
    require(config.compute != "bfloat16", "compute", "be float32 with lr auto", config.compute)

    def begin(eta: float, P: int) -> DeComFLFederation:
        rehearsal = config.but(method.rehearsal(eta, P), sampled=min(SAMPLED, config.sampled))
        federation = replace(start, config=rehearsal).federation().by_records
        assert federation is not None  # as the method is one of scalars
        # Where μ is so small that rounding would hide the curvature, a rehearsal has a larger one.
        reach = REACH * float(federation.x.double().square().mean().sqrt())
        for client in federation.clients:
            client.mu = max(client.mu, reach)
        return federation

    tuning = rehearse(begin, P, begin(method.lr, P or FIRST).observer.rule)
    return replace(start, config=config.but(lr=tuning.lr, perturbations=tuning.P)), tuning
