"""What the laws quantify over, in one place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from decomfl_lab.laws.contract import Case, Participation
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.methods.rule_options import DEFAULT_RULE
from decomfl_lab.methods.scalars import Scalars
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.protocol.aggregation import Aggregation, ClippedMean, Krum, Majority, Mean, Median, TrimmedMean
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.weights import MOST_EXAMPLES
from decomfl_lab.records.record import ScalarArray
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pooled import PooledSgd
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, UpdateRule

__all__ = [
    "Answers",
    "answers",
    "cases",
    "counters",
    "distributions",
    "examples",
    "few",
    "participations",
    "rules",
    "seeds",
    "shapes",
]

seeds = st.integers(0, 2**64 - 1)
distributions = st.sampled_from(Distribution)
wide_dtypes = st.sampled_from((torch.float32, torch.float64))
counters = st.tuples(seeds, st.integers(0, 200), distributions)

_decay = st.sampled_from((0.0, 1e-5, 0.1))
_momentum = st.builds(
    Momentum,
    beta=st.sampled_from((0.9, 0.5, 0.1)),
    convention=st.sampled_from(("torch", "paper")),
    weight_decay=_decay,
)
_sgd = st.builds(Sgd, weight_decay=_decay)
_adaptive = st.builds(
    AdaMM, beta1=st.sampled_from((0.9, 0.0)), beta2=st.sampled_from((0.999, 0.5)), weight_decay=_decay
)
_low_precision = st.builds(
    LowPrecision,
    rule=st.one_of(_momentum, _sgd, _adaptive),
    dtype=st.sampled_from(Format),
    rounding=st.sampled_from(("stochastic", "compensated", "nearest")),
)
_methods = [kind() for kind in METHODS.values()]
_scalar = [made.rule for made in _methods if isinstance(made, Scalars)]
_own = sorted({rule for rule in _scalar if not rule.pool} - {DEFAULT_RULE}, key=repr)  # pools: smaller ones below
rules: SearchStrategy[UpdateRule] = st.one_of(
    _momentum,
    _sgd,
    _adaptive,
    st.builds(SignSgd, weight_decay=_decay),
    _low_precision,
    st.builds(PooledSgd, size=st.integers(1, 6), exponent=st.sampled_from((-28, -20))),
    st.sampled_from([GridSgd(exponent=exponent) for exponent in range(-18, -11)]),
    st.sampled_from(_own),
)

MOST_CLIENTS = 5
_seedings = st.sampled_from(sorted(Seeding, key=lambda own: own is not Seeding.PER_STEP))  # the simplest first
_dimension = st.integers(1, 9)
shapes = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 300)),
        st.tuples(_dimension, _dimension),
        st.tuples(_dimension, _dimension, st.integers(1, 3)),
        st.just(()),
    ),
    min_size=1,
    max_size=4,
).map(tuple)


@st.composite
def participations(draw: DrawFn, M: int) -> Participation:
    """A round: any non-empty set of clients; some replies, never all, may be lost."""
    clients = draw(st.lists(st.integers(0, M - 1), min_size=1, max_size=M, unique=True))
    lost = draw(st.lists(st.sampled_from(clients), max_size=len(clients) - 1, unique=True))
    return Participation(tuple(sorted(clients)), frozenset(lost))


@st.composite
def cases(draw: DrawFn, *, max_clients: int = MOST_CLIENTS, max_rounds: int = 7) -> Case:
    """Federations of up to ``max_clients``, with any participation: any lag, never, twice in a row."""
    M = draw(st.integers(1, max_clients))
    rule = draw(rules)
    change = st.integers(1, 4)
    rate = st.sampled_from((0.05, 0.003, 0.2))
    return Case(
        M=M,
        K=draw(st.integers(1, 3)),
        P=Schedule(draw(st.integers(1, 4)), draw(st.dictionaries(change, st.integers(1, 4), max_size=2))),
        eta=Schedule(draw(rate), draw(st.dictionaries(change, rate, max_size=3))),
        rule=rule,
        estimator=draw(st.sampled_from(("forward", "central", "central-sign", "projection"))),
        mu=draw(st.sampled_from((2.0**-3, 2.0**-10))),  # exact in float32
        distribution=draw(distributions),
        shapes=draw(shapes),
        dtype=getattr(torch, rule.dtype) if isinstance(rule, LowPrecision) else draw(wide_dtypes),
        seed=draw(seeds),
        rounds=tuple(draw(st.lists(participations(M), min_size=1, max_size=max_rounds))),
        seeding=Seeding.POOL if rule.pool else draw(_seedings),
        tracking=draw(st.sampled_from(Tracking)),
        rank=draw(st.integers(1, 3)),
    )


few = st.tuples(*[st.integers(1, 4)] * MOST_CLIENTS)
"""The numbers of examples of the clients of a case, so few that each can be a client."""
examples = st.one_of(few, st.tuples(*[st.integers(1, MOST_EXAMPLES)] * MOST_CLIENTS))
"""Any numbers of examples."""


class Answers(NamedTuple):
    """What clients send in a round, (K, P) arrays, and the rule that makes one of them."""

    rule: Aggregation
    honest: list[ScalarArray]
    liars: list[ScalarArray]


_mild = st.integers(-40, 40).map(lambda tenths: tenths / 10)
_far = st.sampled_from((1e4, -1e4, 2.0**127, -(2.0**127)))
_sign = st.sampled_from((1, -1))
_wild = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def answers(draw: DrawFn, *kinds: Any) -> Answers:
    """A rule of one of these kinds, and as many replies as it needs or a few more, of which no more lie than it bears.

    Honest replies often agree, liars' often do too; these may be anything that is finite.
    """
    kind = draw(st.sampled_from(kinds or (Mean, ClippedMean, Median, TrimmedMean, Krum, Majority)))
    f = draw(st.sampled_from((2, 1, 0, 3)))
    tolerated = f + draw(st.integers(0, 1))
    rule = kind(tolerated) if kind in (TrimmedMean, Krum) else kind()
    if kind is ClippedMean:
        rule = ClippedMean(draw(st.sampled_from((0.0, 0.5, 3.0))))
    n = draw(st.integers(0, 3)) + max(rule.least, 2 * f + 1)
    shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))

    def replies(count: int, number: SearchStrategy[float], alike: bool) -> list[ScalarArray]:
        size = shape[0] * shape[1]
        each = st.lists(number, min_size=size, max_size=size)
        drawn = draw(each.map(lambda one: [one] * count) if alike else st.lists(each, min_size=count, max_size=count))
        return [np.array(one, dtype=rule.dtype).reshape(shape) for one in drawn]

    mild_or_not, often = st.sampled_from((_mild, _mild, _wild)), st.sampled_from((True, True, False))
    numbers, lies = (_sign, _sign) if kind is Majority else (draw(mild_or_not), draw(st.sampled_from((_far, _wild))))
    honest = replies(n - f, numbers, not draw(often))
    return Answers(rule, honest, replies(f, lies, draw(often)))
