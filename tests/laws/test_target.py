"""Checking somebody else's implementation: the template is the contract, and what is not offered is skipped by name."""

from __future__ import annotations

import inspect
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab import laws
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.laws import _template as template
from decomfl_lab.laws.contract import PARTS
from decomfl_lab.laws.exploration import Scope, explore
from tests.laws.foreign import Client, Foreign


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
    assert outcomes.summary == "1 of 1 laws hold, 1 skipped"


def test_the_template_has_every_part_with_its_arguments() -> None:
    for name in PARTS.keys() - {"delivery"}:
        own, wanted = vars(template.Mine)[name], PARTS[name]
        assert list(inspect.signature(own).parameters) == list(inspect.signature(wanted).parameters), name
    assert vars(template.Mine).keys() & PARTS.keys() == PARTS.keys() - {"delivery"}


@pytest.mark.parametrize(
    ("own", "contract"),
    [(template.Model, laws.AnyReplica), (template.Client, laws.AnyClient), (template.Server, laws.AnyServer)],
)
def test_the_template_has_every_member_that_the_laws_use(own: Any, contract: Any) -> None:
    public = {name for name in {**vars(contract), **contract.__annotations__} if not name.startswith("_")}
    told = own.__doc__ or ""
    assert {name for name in public if not hasattr(own, name) and f"{name}: " not in told} == set()
    assert {name for name in vars(own) if not name.startswith("_")} <= public


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def Mine(:", "SyntaxError: .*mine.py, line 1"),
        ("import nothing_there", "ModuleNotFoundError: No module named 'nothing_there', mine.py line 1"),
        ("class Mine:\n    def __init__(self):\n        1 / 0", "ZeroDivisionError: division by zero, mine.py line 3"),
    ],
)
def test_a_target_that_fails_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(text)
    assert main(["verify", "--target", "mine.py:Mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(says, line), line


def test_what_is_no_implementation_is_refused() -> None:
    with pytest.raises(InputError, match="implementation must be an instance of laws.Implementation, got None"):
        laws.verify(None)  # type: ignore[arg-type]


def test_states_are_searched_as_far_as_an_implementation_goes(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--target", "mine.py:Mine", "--states"]) == 3
    assert "supports refuses Momentum(beta=0.5" in capsys.readouterr().out.splitlines()[0]
    assert not explore(Scope(clients=2, rounds=2), Foreign()).broken
    with pytest.raises(NotImplementedError, match="sessions are the lab's"):
        explore(Scope(clients=1, session=True), Foreign())
