"""Checking somebody else's implementation: what its template has, what it supports, and what is not offered."""

import copy
import json
import re
import runpy
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import Phase, given, settings

from decomfl_lab import Momentum, Sgd, laws
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.laws.check import check_law
from decomfl_lab.laws.contract import PARTS, Case
from decomfl_lab.laws.faults.federation import FAULTS, NARROW
from decomfl_lab.laws.strategies import Support, cases
from decomfl_lab.noise import Format
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.replicas.rules import LowPrecision
from tests.cases import refused, refuses, rows_of, sampled
from tests.laws.foreign import Client, Foreign


@pytest.fixture
def mine(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["verify", "--target-template"]) == 0
    path = here / "mine.py"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def test_the_template_runs_as_it_is_and_every_law_is_skipped(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--target", "mine.py:Mine", "--cases", "1", "--json"]) == 3
    rows = {row["law"]: row for row in json.loads(capsys.readouterr().out)}
    assert {row["status"] for row in rows.values()} == {"skipped"}
    assert list(rows) == list(laws.LAWS)
    assert rows["lean-clients-are-like-others"]["counterexample"] == "lean_client is not offered"
    assert rows["revert-leaves-every-bit"]["counterexample"].endswith("client, server, ledger are not offered")


def test_a_template_of_which_the_client_is_filled_in_is_tried_with_the_labs_server(mine: Path) -> None:
    kind = runpy.run_path(str(mine))["Mine"]
    kind.client = lambda self, case, i, objective=None: Client(case, i, objective or laws.Wavy(case.d, i))
    outcomes = laws.verify(kind(), cases=5, laws=["rebuilt-client-equals-server", "bad-replies-are-refused"])
    assert [outcome.status for outcome in outcomes] == ["holds", "skipped"]
    assert outcomes.summary == "1 of 1 laws hold, 1 skipped, and none of these looks at your replica"


@pytest.mark.parametrize(
    ("name", "contract"), [("Model", laws.AnyReplica), ("Client", laws.AnyClient), ("Server", laws.AnyServer)]
)
def test_the_template_has_every_member_that_the_laws_use(name: str, contract: Any, mine: Path) -> None:
    own = runpy.run_path(str(mine))[name]
    public = {name for name in {**vars(contract), **contract.__annotations__} if not name.startswith("_")}
    told = own.__doc__ or ""
    assert {name for name in public if not hasattr(own, name) and f"{name}: " not in told} == set()
    assert {name for name in vars(own) if not name.startswith("_")} <= public


@pytest.mark.parametrize(("text", "says"), rows_of(__file__)["rows"])
def test_a_target_that_fails_is_told_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    Path("mine.py").write_text(text)
    line = refused(capsys, "verify", "--target", "mine.py:Mine")
    assert re.search(says, line), line


class _TheLabsServer(Foreign):
    """Replicas and clients of its own, which have the members of the contract and no others."""

    server = laws.Implementation.server  # type: ignore[assignment]


def test_the_labs_server_and_delivery_use_nothing_of_replicas_and_clients_but_the_contract() -> None:
    outcomes = laws.verify(_TheLabsServer(), cases=2)
    assert outcomes.broken == [], outcomes
    assert outcomes.tried >= 19


class _Directions(laws.Implementation):
    """Makes directions of its own, and its own replicas."""

    def direction(self, seed: int, p: int, d: int, distribution: Any) -> Any:
        return super().direction(seed, p, d, distribution)

    def replica(self, case: Any, *, per_tensor: bool = False) -> Any:
        return super().replica(case, per_tensor=per_tensor)


def test_a_law_that_does_not_look_at_a_part_of_ones_own_says_so_by_name() -> None:
    outcomes = laws.verify(_Directions(), cases=2, laws=["a-gap-is-refused", "slices-and-backends-agree"])
    assert [outcome.unseen for outcome in outcomes] == [("direction",), ("replica",)]
    assert str(outcomes[0]).endswith("never skipped over (does not look at your direction)")
    assert "looks at your" not in outcomes.summary
    (alone,) = laws.verify(_Directions(), cases=2, laws=["a-gap-is-refused"])
    assert laws.Outcomes([alone]).summary == "1 of 1 laws hold, and none of these looks at your direction"


@pytest.mark.thorough
def test_the_list_of_laws_that_are_known_not_to_hold_is_strict() -> None:
    reasons = {"pruning-keeps-what-is-needed": "issue 12", "a-gap-is-refused": "was so once"}
    suite = laws.pytest_suite(laws.FAULTS["never-pruned"], cases=20, xfail=reasons)
    with pytest.raises(pytest.xfail.Exception, match="issue 12\nBROKEN"):
        suite("pruning-keeps-what-is-needed")
    held = laws.pytest_suite(laws.Implementation(), cases=2, xfail=reasons)
    with pytest.raises(pytest.fail.Exception, match=r"a-gap-is-refused holds now: take it off .* \(was so once\)"):
        held("a-gap-is-refused")
    with pytest.raises(pytest.skip.Exception, match="not about your code"):
        laws.pytest_suite(_Directions(), xfail={"votes-are-counted": "later"})("votes-are-counted")


@refuses(
    ({"gravity": "x"}, "law of xfail must be one of"),
    ({"a-gap-is-refused": " "}, r"xfail\['a-gap-is-refused'\] must be a reason in words"),
    ({"a-gap-is-refused": None}, "must be a reason in words, got None"),
    (["a-gap-is-refused"], r"xfail must be \{law: reason, \.\.\.\}, got"),
)
def test_a_list_that_names_no_law_or_no_reason_is_refused(xfail: Any) -> None:
    laws.pytest_suite(laws.Implementation(), xfail=xfail)


class _Crashes(laws.Implementation):
    def client(self, *_: Any) -> Any:
        raise RuntimeError("boom")


def test_an_error_that_many_laws_end_with_is_told_once() -> None:
    told = str(laws.verify(_Crashes(), cases=1, laws=["replies-are-measurements", "rebuilt-client-equals-server"]))
    assert told.count("boom") == 1
    assert "rebuilt-client-equals-server: the same error as in replies-are-measurements" in told


def test_a_part_that_makes_nothing_is_refused_by_its_name() -> None:
    nothing = type("Nothing", (laws.Implementation,), {"client": lambda *_: None})
    with pytest.raises(InputError, match="^client of Nothing must return what the laws are to use, got None$"):
        laws.verify(nothing(), cases=1, laws=["replies-are-measurements"])


MEASURED = "replies-are-measurements"
TRACKED = "clients-can-track-their-round"


class _Supporting(laws.Implementation):
    """The lab's own for cases of one kind."""

    def __init__(self, supports: Callable[[Case], bool], **skips: str) -> None:
        self.supports = supports  # type: ignore[method-assign,assignment]
        self.skips = {name.replace("_", "-"): reason for name, reason in skips.items()}

    @property
    def offered(self) -> frozenset[str]:
        return frozenset(PARTS)


SUPPORTED: dict[str, tuple[Callable[[Case], bool], Callable[[Case], Any], int]] = {
    **{alone: (accepts, lambda case: (case.estimator, case.K), least) for (alone, accepts), least in zip(
        NARROW.items(), (3, 3, 12, 12, 4), strict=True
    )},
    "differences": (lambda case: case.estimator in ("forward", "central"), lambda case: case.estimator, 2),
    "16 bits": (lambda case: isinstance(case.rule, LowPrecision), lambda case: (case.rule, case.dtype), 30),
    "16 bits of plain SGD, to the nearest": (
        lambda case: case.rule in (LowPrecision(Sgd(), Format(own), "nearest") for own in Format),
        lambda case: case.rule, 2
    ),
    "pools": (lambda case: case.seeding is Seeding.POOL, lambda case: case.rule, 12),
    "momentum on float64": (
        lambda case: isinstance(case.rule, Momentum) and case.dtype == torch.float64, lambda case: case.rule, 10
    ),
    "no seeds, projections": (
        lambda case: (case.seeding, case.estimator) == (Seeding.PER_RUN, "projection"), lambda case: case.P.initial, 4
    ),
    "two clients or more": (lambda case: case.M > 1 and case.estimator == "central", lambda case: case.M, 4),
    "no pool": (lambda case: not isinstance(case.rule, PooledSgd), lambda case: case.seeding, 4),
}  # fmt: skip
"""Kinds of cases: what is accepted, what of them must occur, and how many different ones of that at least in 200."""


@pytest.mark.parametrize("kind", sampled(SUPPORTED, 3))
def test_cases_are_drawn_from_what_is_supported(kind: str) -> None:
    accepts, of, least = SUPPORTED[kind]
    support, found = Support(_Supporting(accepts)), []

    @settings(max_examples=200, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(cases())
    def draw(case: Case) -> None:
        found.append(support.fitted(case))

    draw()
    taken = [case for case in found if case is not None]
    assert all(map(accepts, taken))
    assert len(taken) >= (0.6 if "clients" in kind else 1.0) * len(found)
    assert len({of(case) for case in taken}) >= least


def test_a_narrow_target_is_tried_on_as_many_cases_as_any_other() -> None:
    outcome = check_law(laws.LAWS[MEASURED], _Supporting(NARROW["central only"]), cases=25)
    assert (outcome.status, outcome.cases, outcome.refused) == ("holds", 25, 0)


class _Turned(laws.Implementation):
    """The lab's own client with the sign of every scalar turned; once it has answered so, something else happens."""

    def __init__(self, then: str) -> None:
        self.then, self.answered = then, False

    def supports(self, case: Case) -> bool:
        return case.estimator == "central" and not (self.answered and self.then == "refuses every case")

    def client(self, case: Case, i: int, objective: Any = None) -> Any:
        if self.answered and self.then == "is not offered":
            raise NotImplementedError
        if self.answered and self.then == "makes nothing":
            return None
        made: Any = FAULTS["sign-turned"].client(case, i, objective)
        handle = made.handle

        def answer(plan: Any) -> Any:
            self.answered = True
            return handle(plan)

        object.__setattr__(made, "handle", answer)
        return made


@pytest.mark.parametrize("then", ["", "refuses every case", "is not offered", "makes nothing"])
def test_a_failure_that_was_found_is_broken_whatever_happens_while_it_is_made_smaller(then: str) -> None:
    (outcome,) = laws.verify(_Turned(then), cases=20, laws=[MEASURED])
    assert outcome.status == "broken", outcome
    assert "it agrees with the right number with the sign turned" in outcome.counterexample


def test_a_counterexample_of_a_narrow_target_ends_at_the_simplest_that_it_supports() -> None:
    narrow: Any = copy.copy(FAULTS["sign-turned"])
    narrow.supports = lambda case: case.estimator == "central" and isinstance(getattr(case.rule, "rule", None), Sgd)
    outcome = check_law(laws.LAWS[MEASURED], narrow, cases=30)
    assert outcome.status == "broken"
    simplest = LowPrecision(Sgd(), Format("bfloat16"), "stochastic")
    assert f"rule = {simplest}, estimator = central, " in " ".join(outcome.counterexample.split())


def _tracks_nothing(**skips: str) -> laws.Implementation:
    return _Supporting(lambda case: case.tracking is Tracking.SERVER, **skips)


def test_a_law_without_a_case_is_an_error_unless_the_target_says_why(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "\n".join([
        "from decomfl_lab import laws", "class Mine(laws.Implementation):",
        "    def supports(self, case): return case.tracking is laws.Tracking.SERVER",
        "    def server(self, *of, **named): return super().server(*of, **named)", "class Said(Mine):",
        "    skips = {'clients-can-track-their-round': 'the server knows'}",
    ])  # fmt: skip
    Path("mine.py").write_text(source)
    some = ["--law", TRACKED, "--law", "a-gap-is-refused", "--law", "pruning-keeps-what-is-needed", "--cases", "3"]
    assert main(["verify", "--target", "mine.py:Mine", *some, "--junit", "laws.xml"]) == 3
    told = capsys.readouterr().out
    assert f"NOCASE              {TRACKED}: Mine.supports refuses tracking = clients\n" in told
    assert "1 of 1 laws hold, 1 without a case that you support, 1 not about your code" in told
    suite = ElementTree.parse("laws.xml").getroot()
    assert [suite.get(name) for name in ("failures", "errors", "skipped")] == ["0", "1", "1"]
    assert main(["verify", "--target", "mine.py:Said", *some, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["status"], row["counterexample"]) == (
        "skipped", "Said.supports refuses tracking = clients: the server knows"
    )  # fmt: skip


def test_the_suite_fails_for_a_law_without_a_case_unless_the_target_says_why() -> None:
    with pytest.raises(pytest.fail.Exception, match="NOCASE .*supports refuses tracking = clients"):
        laws.pytest_suite(_tracks_nothing(), cases=2)(TRACKED)
    with pytest.raises(pytest.xfail.Exception, match="issue 12"):
        laws.pytest_suite(_tracks_nothing(), cases=2, xfail={TRACKED: "issue 12"})(TRACKED)
    with pytest.raises(pytest.skip.Exception, match="the server knows"):
        laws.pytest_suite(_tracks_nothing(clients_can_track_their_round="the server knows"), cases=2)(TRACKED)


def test_a_reason_is_one_of_a_law() -> None:
    with pytest.raises(InputError, match="law of skips must be one of .* got 'gravity'"):
        laws.verify(_tracks_nothing(gravity="x"))


@pytest.mark.thorough
def test_a_law_whose_cases_were_nearly_all_refused_says_how_many_it_tried() -> None:
    rare = _Supporting(lambda case: zlib.crc32(repr((case.shapes, case.seed, case.rounds)).encode()) % 25 == 0)
    (outcome,) = laws.verify(rare, cases=100, laws=["the-server-needs-no-model"])
    assert outcome.status == "holds"
    assert f"({outcome.refused} others were refused)" in str(outcome)
    assert outcome.refused > 9 * outcome.cases > 0
