"""The laws of rules that make a round's scalars of the clients' replies; proofs are in docs/robust.md."""

from random import Random
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.register import LawBrokenError, bits, law, same
from decomfl_lab.laws.strategies import Answers
from decomfl_lab.protocol.aggregation import ClippedMean, Krum, Majority, Median, TrimmedMean, omega
from decomfl_lab.records.record import ScalarArray

_ROUNDED = 1e-6
"""Relative error allowed to float32 numbers."""


def _all(answers: Answers) -> list[ScalarArray]:
    return [*answers.honest, *answers.liars]


def _below(what: str, value: NDArray[Any] | float, bound: NDArray[Any] | float) -> None:
    if not np.all(value <= bound):
        raise LawBrokenError(f"{what}: {value} is above {bound}")


@law(draw_from.answers(), st.randoms(use_true_random=False), parts=("aggregate",))
def aggregates_have_no_order(implementation: Implementation, answers: Answers, random: Random) -> None:
    """the order of the clients changes no bit of the round's scalars; no reply is written to."""
    rule, replies = implementation.rule or answers.rule, _all(answers)
    before = list(map(bits, replies))
    scalars = implementation.aggregate(rule, replies)
    for reply, sent in zip(replies, before, strict=True):
        same("a reply after it was aggregated", bits(reply), sent)
    random.shuffle(replies)
    same("scalars in another order", bits(implementation.aggregate(rule, replies)), bits(scalars))


@law(draw_from.answers(), parts=("aggregate",))
def agreement_is_kept(implementation: Implementation, answers: Answers) -> None:
    """what all clients say is the round's scalars, to the bit, up to the norm that is clipped to."""
    rule, answer, n = implementation.rule or answers.rule, answers.honest[0], len(_all(answers))
    if implementation.rule is not None:  # which may be rounded otherwise, and clip
        _below("size", np.abs(implementation.aggregate(rule, [answer] * n)), np.abs(answer) * (1 + _ROUNDED))
        return
    norm = np.linalg.norm(answer.astype(np.float64)) * (1 + _ROUNDED)
    assume(not (isinstance(rule, ClippedMean) and 0 < rule.clip < norm))
    same("what all say", implementation.aggregate(rule, [answer] * n).tolist(), answer.tolist())


@law(draw_from.answers(Median, TrimmedMean, Majority), parts=("aggregate",))
def liars_stay_within_the_honest_range(implementation: Implementation, answers: Answers) -> None:
    """by median, trimmed mean and majority every coordinate is within the range of the honest ones, whatever liars
    say.
    """
    scalars = implementation.aggregate(answers.rule, _all(answers))
    _below("the largest honest scalars", scalars, np.max(answers.honest, axis=0))
    _below("the smallest honest scalars", np.min(answers.honest, axis=0), scalars)


@law(draw_from.answers(Krum, Krum, Median, TrimmedMean), parts=("aggregate",))
def liars_move_aggregates_by_the_honest_spread(implementation: Implementation, answers: Answers) -> None:
    """the round's scalars are within √ω spreads of the honest replies' mean, whatever the liars say."""
    rule, f = answers.rule, len(answers.liars)
    honest = np.stack(answers.honest).astype(np.float64)
    away = (implementation.aggregate(rule, _all(answers)) - honest.mean(axis=0)) ** 2
    spread = honest.var(axis=0)
    if isinstance(rule, Krum):  # which chooses by all coordinates together
        away, spread = away.sum(keepdims=True), spread.sum(keepdims=True)
    rounded = _ROUNDED * np.abs(honest).max() + float(np.finfo(np.float32).tiny)
    _below("distance from the honest mean", np.sqrt(away), np.sqrt(omega(rule, len(honest) + f, f) * spread) + rounded)


@law(draw_from.answers(Majority), parts=("aggregate",))
def votes_are_counted(implementation: Implementation, answers: Answers) -> None:
    """the majority's sign is the one that more clients have, and 1 where as many have either."""
    replies = _all(answers)
    signs = implementation.aggregate(answers.rule, replies)
    for place in np.ndindex(signs.shape):
        votes = [int(reply[place]) for reply in replies]
        same(f"sign at {place}", int(signs[place]), -1 if votes.count(-1) > votes.count(1) else 1)


@law(draw_from.answers(Krum), parts=("aggregate",))
def krum_takes_one_reply_whole(implementation: Implementation, answers: Answers) -> None:
    """Krum takes one client's reply whole."""
    scalars = implementation.aggregate(answers.rule, _all(answers))
    same("scalars that are a client's", bits(scalars) in map(bits, _all(answers)), True)


@law(draw_from.answers(ClippedMean), parts=("aggregate",))
def clipped_means_keep_the_norm(implementation: Implementation, answers: Answers) -> None:
    """a clipped mean's norm is at most c, or the largest of an honest reply where c is the median of the norms."""
    rule: Any = answers.rule
    scalars = implementation.aggregate(rule, _all(answers)).astype(np.float64)
    honest = max(float(np.linalg.norm(reply.astype(np.float64))) for reply in answers.honest)
    bound = (rule.clip or honest) * (1 + _ROUNDED) + scalars.size * float(np.finfo(np.float32).tiny)
    _below("norm", float(np.linalg.norm(scalars)), bound)
