"""Kept results of work: used as they were left or not at all; work stops when its turn ends."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab import InputError, TrainConfig
from decomfl_lab.interrupts import Interrupted
from decomfl_lab.runs import course, provenance, run
from decomfl_lab.runs import kept as of_run
from decomfl_lab.runs.progress import left_words
from decomfl_lab.runs.told import Progress
from paper_repro.workflow import runs
from paper_repro.workflow.runs import DONE_FILE, SO_FAR, TURN_FILE, Job, Result, Work, finished, run_all


class Small:
    """Work that leaves a table; ``during`` is called in the middle of it."""

    title = "small"

    def __init__(self, during: Callable[[Path], None] = lambda _: None) -> None:
        self.during = during

    def key(self) -> str:
        return "small"

    def cost(self) -> float:
        return 1.0

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        self.during(folder)
        report(Progress(1, 1, 0.0, 0.0, 0.0))
        (folder / "rows.csv").write_text("value\n1.5\n")
        return "ended well"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:
        return pd.read_csv(folder / "rows.csv"), {"ended": ended}


@pytest.mark.parametrize("name", ["rows.csv", DONE_FILE])
def test_a_kept_result_with_a_changed_bit_is_refused(name: str, tmp_path: Path) -> None:
    for _ in range(2):  # computed, then kept
        ((rows, facts),) = run_all([Small()], tmp_path, n_jobs=1)
        assert (rows.value.tolist(), facts) == ([1.5], {"ended": "ended well"})
    path = tmp_path / "small" / name
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"runs must be as they were left, got .*small with another .*{name}"):
        run_all([Small()], tmp_path, n_jobs=1)


def _ended(folder: Path) -> None:
    for path in folder.parent.glob(f"{TURN_FILE}-*"):
        path.unlink()


def test_work_stops_when_its_turn_has_ended(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"^interrupted; 0 of 1 runs are finished, .* the same command goes on$"):
        run_all([Small(_ended)], tmp_path, n_jobs=1)
    assert not (tmp_path / "small" / DONE_FILE).exists()


CONFIG = TrainConfig(
    method="decomfl-projection", data="digits", model="logistic", clients=4, sampled=2, perturbations=2, batch_size=4
)


def job(rounds: int = 60, seed: int = 0, **changes: Any) -> Job:
    config = replace(CONFIG, rounds=rounds, seed=seed, eval_every=2)
    return Job(config, {"series": "a"}, f"seed {seed}", **changes)


def _one(results: list[Result | None]) -> Result:
    (result,) = results
    assert result is not None
    return result


def _stopped_after(rounds: int, root: Path, monkeypatch: pytest.MonkeyPatch, work: Job | None = None) -> Result:
    """What there is when the time is over after so many rounds."""

    def slowly(*args: Any, on_round: Callable[[Progress], None], **kwargs: Any) -> pd.DataFrame:
        def told(at: Progress) -> None:
            if at.round == rounds:
                (watcher,) = (each for each in threading.enumerate() if isinstance(each, runs._Watcher))
                watcher._until = 0.0
                while list(root.glob(f"{TURN_FILE}-*")):
                    time.sleep(0.05)
                monkeypatch.setattr(runs, "POLL_SECONDS", 0.0)  # so that this round hears of it
            on_round(at)

        return run.train(*args, on_round=told, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "train", slowly)
        return _one(run_all([work or job()], root, n_jobs=1, hours=1.0, resume=True))


def _version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (provenance, course, of_run, runs):
        monkeypatch.setattr(module, "code_version", lambda: name)


def test_when_the_hours_are_over_what_is_under_way_is_saved_and_shown_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, facts = _stopped_after(9, tmp_path, monkeypatch)
    assert not finished((rows, facts))
    assert facts[SO_FAR] == "8 of 60 rounds"
    assert rows["round"].tolist() == [2, 4, 6, 8]
    assert (set(rows.finished), set(rows.planned), set(rows.examples)) == ({False}, {60}, {400})
    assert not list(tmp_path.glob(f"*/{DONE_FILE}"))
    (table,) = tmp_path.glob("*/metrics.csv")
    table.write_text(re.sub(r"^8,0\.\d+", "8,0.9999", table.read_text(), flags=re.M))
    again = job().so_far(table.parent)
    assert again is not None
    assert "8,0.9999" in table.read_text()
    assert again[0].equals(rows)  # they are the checkpoint's


def test_another_version_goes_on_where_it_was_asked_to_and_the_provenance_lists_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = _one(run_all([job()], tmp_path / "whole", n_jobs=1))
    root = tmp_path / "runs"
    _version("first", monkeypatch)
    _stopped_after(9, root, monkeypatch)
    _version("second", monkeypatch)
    (begun,) = (path.parent for path in root.glob("*/config.toml"))
    runs._identities.cache_clear()
    assert job().begun(root) == begun
    assert job(seed=1).begun(root) is job(rounds=61).begun(root) is None
    result = rows, facts = _one(run_all([job()], root, n_jobs=1, resume=True))
    assert finished(result)
    assert facts["codes"] == ["first", "second"]
    same = [name for name in rows if name != "seconds"]
    pd.testing.assert_frame_equal(rows[same], whole[same])
    _version("third", monkeypatch)
    _, facts = _one(run_all([job()], root, n_jobs=1, resume=True))  # done, so not done again
    assert facts["codes"] == ["first", "second"]
    assert len(list(root.glob("*/config.toml"))) == 1
    _, anew = _one(run_all([job()], root, n_jobs=1))
    assert (anew["code"], "codes" in anew) == ("third", False)
    assert len(list(root.glob("*/config.toml"))) == 2


def test_with_little_time_the_urgent_go_first_and_of_those_the_cheap_ones() -> None:
    works = {Path(name): work for name, work in zip("abc", (job(90), job(30), job(10, urgency=1)), strict=True)}
    assert [path.name for path, _ in runs._in_order(works, limited=True)] == ["b", "a", "c"]
    assert [path.name for path, _ in runs._in_order(works, limited=False)] == ["a", "b", "c"]


def test_each_result_is_told_when_it_comes_in_the_order_given_and_what_was_there_first(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []

    def come(work: Work, result: runs.Result) -> None:
        told.append((work.key(), len(result[0])))

    works = [job(4), job(2), Small()]
    run_all([works[1]], tmp_path, n_jobs=1)
    run_all(works, tmp_path, n_jobs=1, on_result=come)
    assert [key for key, _ in told] == [works[n].key() for n in (1, 0, 2)]
    assert all(rows for _, rows in told)


@pytest.mark.parametrize(("count", "processes", "threads"), [(1, 4, 4), (2, 4, 2), (3, 4, 1), (9, 4, 1), (1, 1, 1)])
def test_training_runs_that_are_fewer_than_the_processes_share_these(
    count: int, processes: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def executed(_work: Work, folder: Path, _turn: Any, threads: int) -> tuple[Path, bool]:
        seen.append(threads)
        return folder, False

    monkeypatch.setattr(runs, "_execute", executed)
    monkeypatch.setattr(runs.joblib, "effective_n_jobs", lambda _: processes)
    run_all([job(10 + n) for n in range(count)], tmp_path, n_jobs=1)
    assert seen == [threads] * count
    seen.clear()
    run_all([Small()], tmp_path, n_jobs=1)
    assert seen == [1]  # what else there is may depend on the number of threads


def test_the_time_left_follows_the_costs_at_the_pace_since_the_start() -> None:
    a, b = Path("a"), Path("b")
    tally = runs._Tally({a: job(30), b: job(90)}, before=5)
    tally.reached(a, 0.5)  # by an earlier command
    assert (tally.counts, tally.left(100.0)) == ((5, 7), math.inf)
    tally.reached(a, 1.0)
    assert tally.counts == (6, 7)
    assert tally.left(110.0) == math.inf  # ten seconds are too few to tell a pace by
    assert tally.left(130.0) == pytest.approx(180.0)  # 15 rounds took half a minute, 90 are left
    assert [left_words(seconds) for seconds in (60.0, 840.0, 9000.0, math.inf)] == [
        "about 1 min left", "about 14 min left", "about 2.5 h left", ""
    ]  # fmt: skip
