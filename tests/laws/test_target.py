"""Checking somebody else's implementation: the template is the contract, and what is not offered is skipped by name."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from decomfl_lab import Momentum, laws
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.world import SmallFederation, case_of
from tests.laws.foreign import Client, Foreign
from tests.refusals import refuses
from tests.tables import rows_of


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "--target-template"]) == 0
    path = tmp_path / "mine.py"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


def test_the_template_runs_as_it_is_and_every_law_is_skipped(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--target", "mine.py:Mine", "--json"]) == 3
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    assert main(["verify", "--target", "mine.py:Mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(says, line), line


class _TheLabsServer(Foreign):
    """Replicas and clients of its own, which have the members of the contract and no others."""

    server = laws.Implementation.server  # type: ignore[assignment]


def test_the_labs_server_and_delivery_use_nothing_of_replicas_and_clients_but_the_contract() -> None:
    outcomes = laws.verify(_TheLabsServer(), cases=2)
    assert outcomes.broken == [], outcomes
    assert outcomes.tried >= 19


ONE_NUMBER = (
    *("rebuilt-client-equals-server", "replay-equals-the-written-out-recursion", "revert-leaves-every-bit"),
    *("dense-pull-equals-replay", "records-are-of-their-rounds-replies"),
)


@pytest.mark.parametrize("law", ONE_NUMBER)
def test_a_model_may_be_one_number(law: str) -> None:
    """By the template's contract, as somebody else has filled it in: the only tensor has the shape ()."""
    one = replace(case_of(SmallFederation(clients=2, rounds=2)), shapes=((),), rule=Momentum(0.5))
    laws.LAWS[law].check(fitted(Foreign()), one)


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
def test_outcomes_as_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "laws.xml"
    some = ["--law", "pruning-keeps-what-is-needed", "--law", "a-gap-is-refused", "--law", "votes-are-counted"]
    assert main(["verify", "--plant", "never-pruned", "--cases", "20", *some, "--junit", str(path)]) == 1
    suite = ElementTree.parse(path).getroot()
    counts = {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")}
    assert counts == {"name": "never-pruned", "tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    failed = suite.find("testcase[@name='pruning-keeps-what-is-needed']/failure")
    assert failed is not None
    assert failed.text is not None
    assert failed.text.startswith("differs  oldest round kept after round")
    skipped = suite.find("testcase[@name='votes-are-counted']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "not about your code but about aggregate"
    capsys.readouterr()
    assert main(["verify", "--junit", str(tmp_path)]) == 2
    assert "junit must be a file that can be written, got" in capsys.readouterr().err


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


class _MakesNothing(laws.Implementation):
    def client(self, *_: Any) -> Any:
        return None


def test_an_error_that_many_laws_end_with_is_told_once() -> None:
    told = str(laws.verify(_Crashes(), cases=1, laws=["replies-are-measurements", "rebuilt-client-equals-server"]))
    assert told.count("boom") == 1
    assert "rebuilt-client-equals-server: the same error as in replies-are-measurements" in told


def test_a_part_that_makes_nothing_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match="^client of _MakesNothing must return what the laws are to use, got None$"):
        laws.verify(_MakesNothing(), cases=1, laws=["replies-are-measurements"])
