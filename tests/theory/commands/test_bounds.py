"""``decomfl bound`` and ``decomfl stepsize``: the numbers of the statements, what binds, what is violated."""

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decomfl_lab.cli import main as cli
from tests.cases import refused
from theory import Setting, Statement, statement
from theory.notation import symbols as s
from theory.notation.numbers import down, exactly

ISSUE = ["stepsize", "--theorem", "1", "--d", "28938", "--m", "10", "--P", "20", "--K", "4", "--L", "1"]
THEOREM_2 = ["--theorem", "2", "--d", "1e9", "--kappa", "50", "--m", "10", "--P", "10", "--L", "2", "--eta", "0.01"]


def typed(constants: Mapping[str, float]) -> list[str]:
    """The constants as options."""
    return [each for name, value in constants.items() for each in (f"--{name.replace('_', '-')}", exactly(value))]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(list(argv)) == 0
    return capsys.readouterr().out


def test_the_examples_of_the_help_texts_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown_there = [line for command in ("bound", "stepsize") for line in shown(capsys, command, "--help").splitlines()]
    examples = [line.strip(" │").split() for line in shown_there if line.strip(" │").startswith("decomfl ")]
    assert len(examples) == 7
    for _, *argv in examples:
        assert shown(capsys, *argv)


def test_every_condition_is_there_and_the_smallest_binds(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, *ISSUE)
    stated, corrected = found["variants"]["stated"], found["variants"]["corrected"]
    here = Setting(d=28938, m=10, P=20, K=4, L=1.0)
    sizes = statement("theorem-1", "stated").step_sizes(here)
    assert {name: row["largest"] for name, row in stated["conditions"].items()} == sizes.conditions
    assert [name for name, row in stated["conditions"].items() if row["binds"]] == ["drift"] == [stated["binding"]]
    assert corrected["largest"] == statement("theorem-1").step_sizes(here).largest
    assert stated["best_eta"] is None
    assert set(found["variants"]) == {"stated", "corrected", "sharper", "wider"}
    text = shown(capsys, *ISSUE)
    assert "3.452e-05 ← binds" in text
    assert "2P/(mKL(d + P + 4))" in text
    assert text.count("← binds") == 4


def test_a_violated_condition_is_said_and_the_bound_still_shown(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bound", *THEOREM_2[:-1], "0.1"]
    found = run(capsys, *argv)["variants"]
    assert not any(each["admissible"] for each in found.values())
    text = shown(capsys, *argv)
    assert (
        "sharper claims nothing here: η = 0.1 is above 0.02049 = 1/(4Lρ_κ), the largest that descent allows.\n" in text
    )
    assert "bound" in text
    assert "claims nothing" not in shown(capsys, "bound", *THEOREM_2)
    corollary = ["bound", "--statement", "corollary-1", "--d", "10", "--L", "1", "--eta", "1e-5", "--mu", "1"]
    assert "μ = 1 is above 0.07692" in shown(capsys, *corollary)


def _rows(*argv: str) -> tuple[dict[str, list[str]], str]:
    """The rows of the table that a command prints, by their first cell, and all that it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert cli.main(list(argv)) == 0
    cells = [
        [cell.strip(" ┃│") for cell in line.split(line[0])[1:-1]]
        for line in out.getvalue().splitlines()
        if line[:1] in "┃│"
    ]
    return {head: rest for head, *rest in cells if head}, out.getvalue()


CONSTANTS = st.fixed_dictionaries({
    "d": st.integers(3, 10**6), "kappa": st.floats(1, 3), "m": st.integers(1, 9), "P": st.integers(1, 99),
    "L": st.floats(0.1, 9), "D": st.floats(0.1, 9), "R": st.integers(1, 10**6), "sigma": st.floats(0.1, 9),
    "G": st.just(1),
})  # fmt: skip


@given(st.sampled_from(["theorem-1", "theorem-1-single", "theorem-2", "theorem-2-gaussian", "corollary-1"]), CONSTANTS)
@settings(max_examples=8, deadline=None)
def test_what_is_printed_of_eta_may_be_typed(name: str, constants: Mapping[str, float]) -> None:
    own = ["--statement", name, *typed(constants)]
    rows, _ = _rows("stepsize", *own)
    for row in {"largest η", "rate-optimal η"} & rows.keys():
        for title, eta in zip(rows["condition"], rows[row], strict=True):
            if eta != "–":
                _, told = _rows("bound", *own, "--eta", eta)
                assert f"{title} claims nothing here" not in told


@given(st.floats(1e-300, 1e300), st.integers(1, 15))
def test_a_number_rounded_down_is_below_by_less_than_a_digit(value: float, digits: int) -> None:
    printed = float(down(value, digits))
    assert value * (1 - 10.0 ** (1 - digits)) < printed <= value
    assert float(exactly(value)) == value


def test_a_bound_without_eta_is_of_the_largest_alone(capsys: pytest.CaptureFixture[str]) -> None:
    terms = {"start": 2 * s.D * s.L * (4 * s.d + 16) / s.R}
    mine = Statement("mine", terms=terms, eta={"descent": 1 / (s.L * (4 * s.d + 16))})
    assert str(mine).endswith("for η = 1/(L(4d + 16))")
    assert str(replace(mine, eta={**mine.eta, "rate": 1 / s.L})).endswith("for η = min(1/(L(4d + 16)), 1/L)")
    corollary = ["bound", "--statement", "corollary-1", "--d", "9", "--L", "1", "--R", "9", "--sigma", "1"]
    assert "is below" not in shown(capsys, *corollary)
    assert "sharper claims nothing here: η = 1e-09 is below 0.0" in shown(capsys, *corollary, "--eta", "1e-9")
    assert "η is the least of" in shown(capsys, "bound", "--statement", "corollary-1")


def test_stepsize_shows_what_the_paper_wants_of_mu_and_takes_no_eta(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["stepsize", "--theorem", "2", "--d", "97", "--kappa", "16", "--m", "2", "--P", "4", "--L", "1", "--R", "2"]
    for distribution in ("sphere", "gaussian"):
        found = run(capsys, *asked, "--distribution", distribution)["variants"]
        assert found["stated"]["rate_mu"]["rate"]["largest"] == pytest.approx((16 / 16) ** 0.25 / 100**1.5)
        assert found["corrected"]["rate_mu"] == {}
    rows, _ = _rows(*asked)
    assert rows["μ for the rate"][0] == "0.001 ← binds"
    told = refused(capsys, *asked, "--eta", "1e9")
    assert "eta must be left out, as it is what is asked for, got 1000000000.0" in told
