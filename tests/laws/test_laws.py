"""Every law holds for the lab's implementation, and every planted fault is caught by the law meant for it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from decomfl_lab import laws
from decomfl_lab.cli.main import main
from decomfl_lab.laws import FAULTS, LAWS, Implementation, check, verify
from decomfl_lab.laws.check import check_law, load_implementation
from decomfl_lab.laws.contract import AcrossDevices, Case
from decomfl_lab.laws.faults.federation import NARROW, NOT_SHOWN, narrow
from decomfl_lab.noise.known_answers import KNOWN_ANSWERS
from decomfl_lab.replicas.replica import Replica
from tests.cases import cases, refuses, rows_of, sampled

RARE = rows_of(__file__)["rare"]
"""Laws of which a fault is caught by fewer cases; they are tried on three times as many."""
MACHINE = "any-order-of-events-keeps-the-bits"


@pytest.mark.parametrize("name", LAWS)
@cases(6, 200)
def test_law_holds(name: str, cases: int) -> None:
    cases = 3 * cases if name in RARE else cases
    outcome = check_law(LAWS[name], Implementation(), cases=cases, seed=1)
    assert outcome.status == "holds", outcome.counterexample
    assert outcome.cases >= min(cases, FINITE.get(name, cases))


FINITE = {"known-answers-are-given": len(KNOWN_ANSWERS)}
"""Laws that quantify over a list have so many cases."""


def test_every_law_has_a_fault_that_it_is_meant_to_catch() -> None:
    assert {fault.caught_by for fault in FAULTS.values()} == set(LAWS)


@pytest.mark.parametrize("fault", sampled(FAULTS, 15))
def test_planted_fault_is_caught_by_values_that_disagree(fault: str) -> None:
    outcome = check_law(LAWS[FAULTS[fault].caught_by], FAULTS[fault], cases=1000, shrink=False)
    assert outcome.status == "broken", outcome
    assert outcome.counterexample.startswith("differs  ")


@pytest.mark.parametrize("name", sampled(narrow(FAULTS), 5))
def test_a_fault_behind_a_narrow_supports_is_caught_too(name: str) -> None:
    fault = narrow(FAULTS)[name]
    outcome = check_law(LAWS[fault.caught_by], fault, cases=150, shrink=False)
    assert outcome.status == "broken", outcome


@pytest.mark.parametrize("name", sampled(NOT_SHOWN, 1))
def test_what_a_narrow_supports_hides_is_listed_and_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NOT_SHOWN, name)
    fault = narrow(FAULTS)[name]
    assert check_law(LAWS[fault.caught_by], fault, cases=30, shrink=False).status == "holds"


@pytest.mark.parametrize("fault", ["revert-forgotten", "round-skipped", "pull-without-state", "queue-too-long"])
def test_the_state_machine_catches(fault: str) -> None:
    assert check_law(LAWS[MACHINE], FAULTS[fault], cases=100, shrink=False).status == "broken"


@pytest.mark.thorough
def test_a_counterexample_is_a_short_history_in_short_lines() -> None:
    found = check_law(LAWS[MACHINE], FAULTS["round-skipped"], cases=200).counterexample.splitlines()
    heads = [line[:9].strip() for line in found if line[0] != " "]
    assert heads[:3] == ["differs", "case", "keep"]
    assert 1 <= len(heads[3:]) <= 4
    assert set(heads[3:]) == {"happens"}
    assert max(map(len, found)) <= 110


def test_a_fault_that_its_law_misses_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Harmless(Implementation):
        caught_by = "a-gap-is-refused"

        def replica(self, case: Any, *, per_tensor: bool = False) -> Any:
            return super().replica(case, per_tensor=per_tensor)

    monkeypatch.setitem(FAULTS, "harmless", Harmless())
    monkeypatch.setattr(check, "FAULTS", {"harmless": FAULTS["harmless"]})
    assert main(["verify", "--plant", "all", "--cases", "1", "--law", "a-gap-is-refused", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    names = ["harmless", *(f"harmless, {alone}" for alone in NARROW)]
    assert rows == [{"fault": name, "law": "a-gap-is-refused", "status": "holds", "meant": True} for name in names]


def test_laws_about_parts_that_are_the_labs_are_not_tried() -> None:
    class Sampling(Implementation):
        def sample(self, seed: int, r: int, M: int, m: int) -> tuple[int, ...]:
            return tuple(range(m))

    outcomes = verify(Sampling(), cases=5)
    assert [outcome.law for outcome in outcomes if outcome.tried] == ["sampling-is-without-replacement"]
    assert outcomes.broken == ["sampling-is-without-replacement"]
    assert str(outcomes).endswith(f"0 of 1 laws hold, {len(LAWS) - 1} not about your code")


def test_once_a_law_is_broken_the_others_get_a_quarter_of_the_cases() -> None:
    class Turned(Implementation):
        def client(self, case: Any, i: int, objective: Any = None) -> Any:
            client = super().client(case, i, objective)
            client.replica.x.neg_()  # of a start that all others have
            return client

    names = ("ledger-counts-what-is-sent", "rebuilt-client-equals-server", "ledger-counts-what-is-sent")
    assert [(own.status, own.cases) for own in verify(Turned(), cases=104, laws=names)] == [
        ("holds", 104),
        ("broken", 1),
        ("holds", 26),
    ]


def test_an_implementation_that_supports_nothing_is_not_tried_and_says_so() -> None:
    class Nothing(Implementation):
        def supports(self, case: Any) -> bool:
            return False

        client = None  # type: ignore[assignment]

    (outcome,) = verify(Nothing(), cases=5, laws=("revert-leaves-every-bit",))
    assert (outcome.status, outcome.counterexample) == ("refused", "Nothing.supports refuses every case that was drawn")


@refuses(
    (lambda: verify(Implementation(), cases=1, laws=("x",)), "law must be one of .* got 'x'"),
    (lambda: verify(Implementation(), seed=-1), "seed must be an integer.* at least 0, got -1"),
    (lambda: load_implementation(None, "x"), "fault must be one of .* got 'x'"),
    (
        lambda: load_implementation("collections:OrderedDict", None),
        "target 'collections:OrderedDict' must make a .*Implementation or .*Method, got OrderedDict",
    ),
    (lambda: verify(None), "implementation must be an instance of laws.Implementation, got None"),  # type: ignore[arg-type]
)
def test_unknown_names_are_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()


def test_a_name_that_is_none_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="laws attribute gravity"):
        _ = laws.gravity


ACROSS = (
    "rebuilt-client-equals-server",
    "replay-equals-the-written-out-recursion",
    "revert-leaves-every-bit",
    "dense-pull-equals-replay",
)
"""Laws that compare clients with the server."""


@pytest.mark.parametrize("name", sampled(ACROSS, 1))
def test_clients_on_another_device_have_the_bits_of_the_others(name: str) -> None:
    outcome = check_law(LAWS[name], AcrossDevices(torch.device("cpu")), cases=40, seed=2)
    assert outcome.passed, outcome.counterexample


def test_another_device_that_rounds_otherwise_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Off(AcrossDevices):
        def client(self, case: Case, i: int, objective: Any = None) -> Any:
            client = super().client(case, i, objective)
            if i % 2:
                client.replica = Replica(case.initial() * (1 + 2**-20), case.rule)
            return client

    assert not check_law(LAWS[ACROSS[0]], Off(torch.device("cpu")), cases=40, seed=2, shrink=False).passed
