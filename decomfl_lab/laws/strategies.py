"""What the laws quantify over, in one place."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from decomfl_lab.laws.contract import Case, Implementation, Participation
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.methods.scalars import Scalars
from decomfl_lab.methods.shared_options import DEFAULT_RULE
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.protocol.aggregation import (
    MOST_EXAMPLES,
    Aggregation,
    ClippedMean,
    Krum,
    Majority,
    Mean,
    Median,
    TrimmedMean,
)
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.record import ScalarArray
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, UpdateRule

seeds = st.integers(0, 2**64 - 1)
distributions = st.sampled_from(Distribution)
wide_dtypes = st.sampled_from((torch.float32, torch.float64))
counters = st.tuples(seeds, st.integers(0, 200), distributions)

_DECAYS = (0.0, 1e-5, 0.1)
_CONVENTIONS: tuple[Literal["torch", "paper"], ...] = ("torch", "paper")
_ROUNDINGS: tuple[Literal["stochastic", "compensated", "nearest"], ...] = ("stochastic", "compensated", "nearest")
_MOMENTUM = [Momentum(*settings) for settings in itertools.product((0.9, 0.5, 0.1), _CONVENTIONS, _DECAYS)]
_SGD = [Sgd(decay) for decay in _DECAYS]
_ADAMM = [
    AdaMM(beta1=beta1, beta2=beta2, weight_decay=decay)
    for beta1, beta2, decay in itertools.product((0.9, 0.0), (0.999, 0.5), _DECAYS)
]
_made = [kind() for kind in METHODS.values()]
_scalar = [made.rule for made in _made if isinstance(made, Scalars)]
_own = sorted({rule for rule in _scalar if not rule.pool} - {DEFAULT_RULE}, key=repr)  # pools: smaller ones below
RULES: list[list[UpdateRule]] = [
    [*_MOMENTUM],
    [*_SGD],
    [*_ADAMM],
    [SignSgd(decay) for decay in _DECAYS],
    [
        LowPrecision(rule, dtype, rounding)
        for dtype, rounding, rule in itertools.product(Format, _ROUNDINGS, (*_MOMENTUM, *_SGD, *_ADAMM))
    ],
    [PooledSgd(size=size, exponent=exponent) for size in range(1, 7) for exponent in (-28, -20)],
    [GridSgd(exponent=exponent) for exponent in range(-18, -11)],
    [*_own],
]
"""The update rules, kind by kind, the simplest of each first."""
rules: SearchStrategy[UpdateRule] = st.one_of(*map(st.sampled_from, RULES))

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
        estimator=draw(st.sampled_from(_VALUES["estimator"])),
        mu=draw(st.sampled_from((2.0**-3, 2.0**-10))),  # exact in float32
        distribution=draw(distributions),
        shapes=draw(shapes),
        dtype=getattr(torch, rule.dtype) if isinstance(rule, LowPrecision) else draw(wide_dtypes),
        seed=draw(seeds),
        rounds=tuple(draw(st.lists(participations(M), min_size=1, max_size=max_rounds))),
        seeding=Seeding.POOL if rule.pool else draw(_seedings),
        tracking=draw(st.sampled_from(Tracking)),
    )


# First SGD without decay, in whatever precision.
_plain_first = sorted((rule for kind in RULES for rule in kind), key=lambda rule: getattr(rule, "rule", rule) != Sgd())
_VALUES: dict[str, list[Any]] = {
    "rule": _plain_first,
    "dtype": [torch.float32, torch.float64, *(getattr(torch, dtype) for dtype in Format)],
    "seeding": list(Seeding),
    "estimator": ["forward", "central", "central-sign", "projection"],
    "K": [1, 2, 3],
    "P": [Schedule(P) for P in (1, 2, 3, 4)],
    "eta": [Schedule(eta) for eta in (0.05, 0.003, 0.2)],
    "distribution": list(Distribution),
    "tracking": list(Tracking),
}
"""What an implementation may lack: the values of each field of a case, which a refused case is given in turn."""
# A rule in 16 bits has a dtype and a rounding beside the rule inside, and whoever has one of these may lack the others.
_without_decay = (_SGD[0], _MOMENTUM[0], _ADAMM[0])
_narrow = [rule for rule in _plain_first if isinstance(rule, LowPrecision) and rule.rule in _without_decay]
_SIMPLEST = _VALUES | {
    "rule": [*(kind[0] for kind in RULES[:-1] if kind[0] not in _narrow), *_narrow, *_own],
    "eta": _VALUES["eta"][:1],
}


class Support:
    """What an implementation supports of what is drawn: nothing is known of ``supports`` but what it says of a case.

    A drawn case that is refused gets other values where its own are refused, each drawn from all those that are not, so
    that whoever supports central differences alone is tried on as many cases as whoever supports everything.
    """

    attempts = 3
    """Drawn cases around which a supported one is sought by trying all values: the others of a case may be at fault."""

    def __init__(self, implementation: Implementation) -> None:
        self.accepts = implementation.supports
        self.own = implementation.simplest
        self.known: Case | None = None  # a case that is accepted
        self.values: dict[str, list[Any]] = {}  # of each field the values with which it still is

    def fitted(self, case: Case) -> Case | None:
        """The case, or one with other values where its own are refused; None where none of those is accepted."""
        if self.accepts(case):
            return case
        if self.known is None and self.attempts:
            self.attempts -= 1
            self._learn(case)
        if self.known is None:
            return None
        fitted = replace(case, **{name: getattr(self.known, name) for name in _VALUES})
        if not self.accepts(fitted):  # it is about the clients, the shapes or the rounds
            return None
        number = case.seed  # a number that is drawn, and 0 in the smallest case: it says which values are taken
        for name, values in self.values.items():
            number, n = divmod(number, len(values))
            drawn = getattr(case, name)
            others = [*values[n:], *values[:n]]
            alike = [other for other in others if type(other) is type(drawn)]  # another rule of the same kind
            fitted = next(self._accepted(fitted, name, [drawn, *alike, *others]), fitted)
        return fitted

    def simplified(self, case: Case, fails: Callable[[Case], bool]) -> Case:
        """The case with the simplest values of these fields with which it still fails, the implementation's own first.

        Hypothesis makes the draws of a case smaller, which are not simpler for whoever supports other ones.
        """
        for name in ("rule", "dtype", "seeding", "estimator", "distribution", "tracking"):
            for value in self._with_own(name, _SIMPLEST[name]):
                if value == getattr(case, name):
                    break
                if any(map(fails, self._accepted(case, name, [value]))):
                    case = next(self._accepted(case, name, [value]))
                    break
        return case

    def _accepted(self, case: Case, name: str, values: Iterable[Any]) -> Iterator[Case]:
        """The accepted ones of the cases with these values of a field, and what each brings with it."""
        for value in values:
            rule = value if name == "rule" else case.rule
            changes = {name: value}
            if isinstance(rule, LowPrecision):  # which says its dtype
                changes["dtype"] = getattr(torch, rule.dtype)
            elif name == "rule" and case.dtype.itemsize == 2:
                changes["dtype"] = torch.float32
            if name == "rule" and bool(rule.pool) != (case.seeding is Seeding.POOL):
                changes["seeding"] = Seeding.POOL if rule.pool else Seeding.PER_STEP
            other = replace(case, **changes)
            right = getattr(other, name) == value and _fit(rule, other.dtype, other.seeding)  # else the rule has none
            if right and self.accepts(other):
                yield other

    def _learn(self, case: Case) -> None:
        """Find an accepted case, of all combinations of values, and then the values that each of its fields may have.

        Those with the fewest fields other than the simplest come first, so that a few of 50,000 are asked as a rule.
        """
        simplest = {name: self._with_own(name, values) for name, values in _SIMPLEST.items()}
        first = {name: values[0] for name, values in simplest.items()}
        for count in range(len(first) + 1):
            for names in itertools.combinations(first, count):
                for values in itertools.product(*(simplest[name][1:] for name in names)):
                    found = replace(case, **first | dict(zip(names, values, strict=True)))
                    if _fit(found.rule, found.dtype, found.seeding) and self.accepts(found):
                        self.known = found
                        for name in _VALUES:
                            taken = self._accepted(found, name, self._with_own(name, _VALUES[name]))
                            self.values[name] = [getattr(other, name) for other in taken] or [getattr(found, name)]
                        return

    def _with_own(self, name: str, values: list[Any]) -> list[Any]:
        """The values of a field, the implementation's simplest first."""
        own = [self.own[name]] if name in self.own else []
        return [*own, *(value for value in values if value not in own)]


def _fit(rule: UpdateRule, dtype: torch.dtype, seeding: Seeding) -> bool:
    """Whether these three can be together in a case: 16 bits need a rule that makes them, as a pool of seeds does."""
    right = dtype is getattr(torch, rule.dtype) if isinstance(rule, LowPrecision) else dtype.itemsize > 2
    return right and bool(rule.pool) == (seeding is Seeding.POOL)


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
        reply = st.lists(number, min_size=size, max_size=size)
        drawn = draw(reply.map(lambda one: [one] * count) if alike else st.lists(reply, min_size=count, max_size=count))
        return [np.array(one, dtype=rule.dtype).reshape(shape) for one in drawn]

    often = st.sampled_from((True, True, False))
    numbers = lies = _sign
    if kind is not Majority:
        numbers = draw(st.sampled_from((_mild, _mild, _wild)))
        lies = draw(st.sampled_from((_far, _wild)))
    honest = replies(n - f, numbers, not draw(often))
    return Answers(rule, honest, replies(f, lies, draw(often)))
