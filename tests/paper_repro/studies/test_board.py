"""The board: one rule for η, costs by the methods' own messages, tables, and verdicts that can come out either way."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.methods.traffic import Cohort
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Replica
from paper_repro.commands.board import BoardOptions, page
from paper_repro.commands.board import board as command
from paper_repro.studies import board
from paper_repro.studies.board import ratio
from paper_repro.studies.board_runs import (
    FLOOR,
    FOLLOWS,
    HIGHEST,
    LINES,
    TOP,
    Score,
    _placed,
    _raced,
    costs,
    races,
    searched,
)
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Options
from paper_repro.workflow.runs import RESULT_FILE, Job
from paper_repro.workflow.scales import SCALES, Race, Sizes
from tests.refusals import refuses
from tests.tables import rows_of

PROBLEM = "digits, logistic"
TINY = SCALES["smoke"].board.but(
    races={PROBLEM: Race(rounds=30, accuracy=0.4)}, tuning_seeds=(7,), seeds=(0, 1), missed=5
)


# --- the rule for η ---------------------------------------------------------------------------------------------------


def bowl(least: int) -> Callable[[int, float], Score]:
    """Rounds that are fewest at ``least``; nothing is reached far above it, or far below."""

    def score(n: int, limit: float) -> Score:
        if n > least + 3:
            return Score(math.inf, True, float(n))
        rounds = 10.0 + abs(n - least)
        return Score(rounds, False, 1.0) if rounds < limit else Score(math.inf, False, 1.0)

    return score


@pytest.mark.parametrize("least", range(FLOOR + 5, HIGHEST - 1))
def test_the_search_ends_at_the_best_rate_wherever_it_is_and_never_at_an_edge_of_what_it_tried(least: int) -> None:
    found = searched(bowl(least))
    best = min(found, key=lambda n: found[n])
    assert best == least
    assert min(found) < best < max(found)


def test_a_rate_gets_no_more_rounds_than_would_make_it_the_best() -> None:
    limits = {}

    def score(n: int, limit: float) -> Score:
        limits[n] = limit
        return Score(100.0 + n, False, 1.0)

    searched(score)
    assert limits[TOP] == math.inf
    assert all(limits[n] <= 100.0 + TOP for n in limits if n != TOP)


# --- costs ------------------------------------------------------------------------------------------------------------


def measured(line: str, missed: int = 5) -> dict[str, Any]:
    return costs(*_placed(job(line), Path("unused")), missed)


def job(line: str, size: Sizes = TINY, problem: str = PROBLEM) -> Job:
    found: Job = races(size, problem, line).arguments["job"]
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_round_costs_what_the_methods_closed_form_says_and_a_rebuild_is_exact(line: str) -> None:
    found, method = measured(line), job(line).config.method
    assert found["round_up"] == method.traffic(Cohort(1, 1, 1), found["d"]).up_bytes
    assert found["forward"] >= 1
    assert found["backward"] == method.gradients
    assert found["exact"]
    assert math.isnan(found["pace"]) == (method.gradients or found["follows"] in ("vectors", "nobody"))
    assert found["follows"] in FOLLOWS


@pytest.mark.parametrize(("line", "expected"), rows_of(__file__)["costs"])
def test_costs_are_those_counted_by_hand(line: str, expected: dict[str, Any]) -> None:
    found = measured(line)
    assert {name: found[name] for name in expected} == expected


def test_missed_rounds_cost_bytes_where_records_are_replayed_and_no_pool_is_shorter() -> None:
    back = {line: [measured(line, n)["back_bytes"] for n in (60, 120)] for line in ("DeComFL", "FedAvg", "FedKSeed")}
    ratio = {line: later / sooner for line, (sooner, later) in back.items()}
    assert 1.8 < ratio["DeComFL"] < 2
    assert ratio["FedAvg"] == ratio["FedKSeed"] == 1


def test_a_rebuild_that_loses_a_record_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Replica.catch_up

    def lossy(self: Replica, records: Iterable[RoundRecord]) -> int:
        known = list(records)
        return whole(self, known[:-1] if len(known) > 1 else known)

    monkeypatch.setattr(Replica, "catch_up", lossy)
    assert not measured("DeComFL")["exact"]


@pytest.mark.parametrize("name", ["DeComFL", "FedAvg", "FedKSeed", "MeZO"])
def test_a_rate_that_is_far_too_large_has_diverged_and_stops_nothing(name: str, tmp_path: Path) -> None:
    bowl = "quadratic κ = 4"
    race = Race(rounds=100, loss=0.1)
    config, dataset = _placed(job(name, TINY.but(races={bowl: race}), bowl), tmp_path)
    rows = _raced(race, config.but(lr=1e30), tmp_path / "far.csv", dataset, 1.0, math.inf, lambda at: None)
    assert rows["ended"].iloc[-1] == "diverged"
    assert list(tmp_path.iterdir()) == [tmp_path / "far.csv"]


# --- the table --------------------------------------------------------------------------------------------------------


def line(name: str, rounds: list[int | None], *, problem: str = "p", forward: int = 20, **more: Any) -> pd.DataFrame:
    """Two evaluations a seed, of which the last reaches the target after so many rounds, or (None) does not."""
    frames = []
    for seed, last in enumerate(rounds):
        at = np.array([1, last or 99])
        own = {"wire_bytes": 300.0 * at, "up_bytes": 100.0 * at, "seconds": 0.5 * at, "test_accuracy": [0.1, 0.9]}
        ended = "out of rounds" if last is None else "reached"
        frames.append(pd.DataFrame({"round": at, "seed": seed, "ended": ended, "test_loss": 0.4, **own}))
    given = {"what": "evaluation", "problem": problem, "line": name, "method": "decomfl", "eta": 0.1, "candidates": 7}
    given |= {"M": 10, "m": 2, "forward": forward, "backward": 0, "kept_bytes": 400, "back_bytes": 5000}
    given |= {"back_seconds": 0.001, "follows": "records", "exact": True, "up_bits": 32.0, "down_bits": 32.0}
    given |= {"round_up": 64, "round_down": 110, "d": 650, "pace": 0.5}
    return pd.concat(frames).assign(**given | more)


def test_the_table_has_means_errors_and_nothing_of_a_race_that_a_seed_did_not_end() -> None:
    table = board.summary(pd.concat([line("A", [10, 30]), line("B", [10, None])])).set_index("line")
    assert list(table.loc["A", ["round", "round ±", "up", "down", "passes", "seconds"]]) == [20, 10, 200, 400, 800, 10]
    assert (table.loc["B", "reached"], table.loc["B", "seeds"]) == (1, 2)
    assert math.isnan(table.loc["B", "round"])
    shown = board.shown(table.reset_index()).set_index("method")
    assert shown.loc["A", "rounds"] == "20 ± 50 %"
    assert shown.loc["B", "rounds"] == "–"
    assert shown.loc["A", "back after missed rounds"] == "5 kB, 1 ms"


def test_a_ratio_is_the_geometric_mean_over_the_problems_that_both_finish() -> None:
    rows = [line("A", [20, 20], problem=p) for p in ("p", "q", "r")]
    rows += [line("B", [10, 10], problem="p"), line("B", [5, 5], problem="q"), line("B", [1, None], problem="r")]
    rows += [line("A", [20, 20], problem="s"), line("B", [10], problem="s")]  # of one seed nobody knows the error
    found = ratio(board.ends(pd.concat(rows)), "round", "A", "B", "rounds")
    assert found[found.whole][["value", "low", "high"]].to_numpy() == pytest.approx(np.full((1, 3), 8**0.5))
    assert found[~found.whole].set_index("problem")["value"].to_dict() == pytest.approx({"p": 2.0, "q": 4.0})


# --- the whole --------------------------------------------------------------------------------------------------------


def run_board(out: Path, **given: Any) -> None:
    command.run(BoardOptions(**{"scale": "smoke", "out": out, "jobs": 1, "methods": "DeComFL;FedAvg", **given}))


def test_the_board_runs_shows_resumes_and_counts_what_its_runs_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"].but(board=TINY))
    run_board(tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {row["line"]: row["reached"] for row in told["table"]} == {"DeComFL": 2, "FedAvg": 2}
    assert len(told["claims"]) == 4
    (ours,) = [row for row in told["table"] if row["line"] == "DeComFL"]
    assert ours["passes"] == ours["round"] * 4 * 20
    assert ours["up"] == pytest.approx(ours["round"] * 4 / 20 * 64)
    done = tmp_path / "runs" / races(TINY, PROBLEM, "DeComFL").key() / RESULT_FILE
    before = done.stat().st_mtime_ns
    run_board(tmp_path)
    assert done.stat().st_mtime_ns == before
    assert "One rule chooses η" in capsys.readouterr().out


@refuses(
    ({"methods": "Sgd"}, "methods must be one of DeComFL"),
    ({"problem": "XOR"}, "problem must be one of digits, logistic"),
    ({"write": Path("nowhere")}, "--write must be a folder that is there"),
)
def test_what_the_board_does_not_know_is_refused(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"].but(board=TINY))
    run_board(tmp_path, **given)


def test_the_page_is_made_of_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "RESULTS", tmp_path)
    with pytest.raises(InputError, match="board must be recorded"):
        page()
    rows = pd.concat([line(name, [9, 8, 9], problem=PROBLEM) for name in ("DeComFL", "HiSo")])
    recordings.save("board", "default", rows, [{"data": "digits", "code": "1"}], tmp_path)
    other = pd.concat([line("FZOO", [7, 7, 7], problem=named) for named in (PROBLEM, "MNIST, CNN")])
    recordings.save("board", "full", other, [{"data": "digits", "code": "2"}], tmp_path, (2, 9))
    command.run(BoardOptions(write=tmp_path))
    text = (tmp_path / "board.md").read_text(encoding="utf-8")
    assert "| DeComFL | 0.1 | 7 | 3 of 3 | 8.67 ± 4 % |" in text
    assert "Scale full: to accuracy 0.9 within 1,500 rounds; the lines that were raced, from rows recorded" in text
    assert text.count("| FZOO | 0.1 | 7 | 3 of 3 | 7 ") == 1  # of the problem that the default lacks
    assert (tmp_path / "board.png").read_bytes()[:4] == b"\x89PNG"


def test_every_line_of_the_board_has_as_many_directions_as_the_others() -> None:
    works = board.jobs(Options(scale=SCALES["default"], readings=(), count="wire"))
    assert len(works) == len(LINES) * len(SCALES["default"].board.races)
    configs = {work.labels["line"]: work.arguments["job"].config for work in works}
    plain = {line: config.method.plain() | {"rounds": config.rounds} for line, config in configs.items()}
    directions = {name: own["perturbations"] * own["rounds"] for name, own in plain.items() if "perturbations" in own}
    assert set(directions.values()) == {10 * SCALES["default"].board.races[works[-1].labels["problem"]].rounds}
    assert plain["FeedSign"]["perturbations"] == 1
