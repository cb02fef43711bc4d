"""Every law holds for the lab's implementation, and every planted fault is caught by the law meant for it."""

from __future__ import annotations

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.laws.check import check_law, load_implementation, verify
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.faults import FAULTS
from decomfl_lab.laws.laws import LAWS
from decomfl_lab.noise.vectors import KNOWN_ANSWERS

CAUGHT_BY = {
    "revert-forgotten": "revert-leaves-every-bit",
    "momentum-not-reverted": "revert-leaves-every-bit",
    "revert-by-arithmetic": "revert-leaves-every-bit",
    "maximum-not-reverted": "revert-leaves-every-bit",
    "grid-undone-in-part": "revert-leaves-every-bit",
    "model-decides": "the-server-needs-no-model",
    "round-forgotten-in-seeds": "fewer-seeds-give-the-same-models",
    "one-seed-for-all-directions": "each-direction-can-have-its-seed",
    "report-ignored": "clients-can-track-their-round",
    "queue-too-long": "a-bounded-history-is-enough",
    "pull-not-counted": "pulling-or-replaying-is-a-matter-of-cost",
    "own-steps-not-corrected": "synchronised-clients-drift-within-their-roundings",
    "corrected-in-single": "synchronised-clients-drift-within-their-roundings",
    "lean-the-other-way": "lean-clients-are-like-others",
    "learning-rate-of-the-present": "rebuilt-client-equals-server",
    "client-order-changed": "reply-order-does-not-matter",
    "round-skipped": "rebuilt-client-equals-server",
    "gap-accepted": "a-gap-is-refused",
    "tensors-restart-the-stream": "whole-vector-equals-per-tensor",
    "pruned-too-far": "pruning-keeps-what-is-needed",
    "never-pruned": "pruning-keeps-what-is-needed",
    "pull-without-state": "dense-pull-equals-replay",
    "any-reply-accepted": "bad-replies-are-refused",
    "uplink-not-counted": "ledger-counts-what-is-sent",
    "directions-repeat": "streams-are-functions-of-their-counters",
    "private-key-lost": "private-keys-hide-the-directions",
    "fused-multiply-add": "programs-agree-however-cut",
    "words-swapped": "known-answers-are-given",
    "tile-off-by-one": "slices-and-backends-agree",
    "high-word-forgotten": "far-slices-agree",
    "rounding-bits-repeat": "programs-agree-however-cut",
    "squares-in-order": "square-sums-agree",
}

CASES = 150
"""As many for a law as catch every planted fault."""


@pytest.mark.parametrize("name", LAWS)
def test_law_holds(name: str) -> None:
    verdict = check_law(LAWS[name], Implementation(), cases=CASES, seed=1)
    assert verdict.passed, verdict.counterexample
    assert verdict.cases >= FINITE.get(name, 150)


# Laws that quantify over a list have so many cases.
FINITE = {"known-answers-are-given": len(KNOWN_ANSWERS)}


def test_every_fault_has_its_law() -> None:
    assert set(CAUGHT_BY) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught(fault: str) -> None:
    verdict = check_law(LAWS[CAUGHT_BY[fault]], FAULTS[fault], cases=CASES, shrink=False)
    assert not verdict.passed
    assert verdict.counterexample


def test_a_foreign_exception_breaks_the_law() -> None:
    class Broken(Implementation):
        def server(self, case, *, with_model=True):  # type: ignore[no-untyped-def]
            raise RuntimeError("no server today")

    (verdict,) = verify(Broken(), cases=5, laws=("the-server-needs-no-model",))
    assert not verdict.passed
    assert "no server today" in verdict.counterexample


def test_unknown_names_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="law must be one of .* got 'x'"):
        list(verify(Implementation(), cases=1, laws=("x",)))
    with pytest.raises(InputError, match="fault must be one of .* got 'x'"):
        load_implementation(None, "x")
    with pytest.raises(InputError, match="target must be module:function .* got 'nowhere:f'"):
        load_implementation("nowhere:f", None)
    with pytest.raises(
        InputError, match=r"target 'collections:OrderedDict' must make a .*Implementation, got OrderedDict"
    ):
        load_implementation("collections:OrderedDict", None)
