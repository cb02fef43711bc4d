"""Works: kept as they were left or not at all, each done once, gone on with, stopped by a signal or in time."""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab import InputError, TrainConfig, processes
from decomfl_lab.interrupts import Interrupted
from decomfl_lab.processes import Processes
from decomfl_lab.progress import Progress, RunBars, left_words
from decomfl_lab.runs import folder as of_run
from decomfl_lab.runs import run as a_run
from decomfl_lab.runs.run import Run
from decomfl_lab.storage import provenance
from paper_repro.workflow import runs
from paper_repro.workflow.runs import RESULT_FILE, SO_FAR, Job, Report, Result, Work, run_all

RUNS = 4
AT_THE_END = Progress(1, 1, 0.0, 0.0, 0.0)


def counted(folder: Path, report: Report, name: str, seconds: float = 0.0, shared: bool = False) -> Result:
    """It says in a file that it was begun, and takes its time, or waits until two processes have begun something."""
    with (folder.parent / "told.txt").open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    if shared:
        until(lambda: len({process for _, process in told(folder.parent)}) == 2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        report(AT_THE_END)
    report(AT_THE_END)
    return pd.DataFrame({"value": [1.5, math.nan], "text": ["", None], "list": [[1], []]}), {"name": name}


def failing(folder: Path, report: Report) -> Result:
    until(lambda: len(told(folder.parent)) == RUNS)  # the others come first
    raise InputError("bad must be right, got wrong")


def work(name: str = "small", **given: Any) -> Work:
    return Work(title=name, function=counted, arguments={"name": name, **given})


def works(seconds: float = 0.0, *, shared: bool = False) -> list[Work]:
    return [work(f"run-{n}", seconds=seconds, shared=shared) for n in range(RUNS)]


CONFIG = TrainConfig(
    method="decomfl-projection", data="digits", model="logistic", clients=4, sampled=2, perturbations=2, batch_size=4
)


def job(rounds: int = 60, seed: int = 0, **changes: Any) -> Job:
    config = replace(CONFIG, rounds=rounds, seed=seed, eval_every=2)
    return Job(config, {"series": "a"}, f"seed {seed}", **changes)


def run(wanted: list[Any], root: Path, n_jobs: int = 1, **given: Any) -> list[Result | None]:
    with Processes(n_jobs) as those:
        return run_all(wanted, root, those, **given)


def one(wanted: Work | Job, root: Path, **given: Any) -> Result:
    (result,) = run([wanted], root, **given)
    assert result is not None
    return result


def told(root: Path) -> list[tuple[str, str]]:
    """The name of every work that was done, and the process that did it."""
    path = root / "told.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((name, process) for name, process in map(str.split, lines))


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def started(code: str, root: Path, **streams: Any) -> subprocess.Popen[str]:
    """Another process that has ``run``, ``works`` and ``root``, the same folder."""
    program = "from pathlib import Path; from tests.paper_repro.workflow.test_runs import run, works;"
    words = [sys.executable, "-c", f"{program} root = Path({str(root)!r}); {code}"]
    return subprocess.Popen(words, text=True, **streams)


def test_a_kept_result_comes_back_as_it_was_and_a_changed_bit_is_refused(tmp_path: Path) -> None:
    for _ in range(2):  # computed, then kept
        rows, facts = one(work(), tmp_path)
        assert rows.to_json() == '{"value":{"0":1.5,"1":null},"text":{"0":"","1":null},"list":{"0":[1],"1":[]}}'
        assert facts == {"name": "small"}
    assert len(told(tmp_path)) == 1
    (path,) = tmp_path.glob(f"*/{RESULT_FILE}")
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"runs must be as they were left, got .*counted-.* another {RESULT_FILE}"):
        one(work(), tmp_path)


def test_a_file_that_a_work_left_for_others_is_looked_at_too(tmp_path: Path) -> None:
    one(work(), tmp_path)
    (folder,) = (path.parent for path in tmp_path.glob(f"*/{RESULT_FILE}"))
    (folder / "model").write_bytes(b"weights")
    facts = {"files": {"model": runs.file_digest(folder / "model")}}
    runs.write_sealed(folder / RESULT_FILE, {"rows": {"value": [1]}, "facts": facts})
    assert one(work(), tmp_path)[1] == facts
    (folder / "model").write_bytes(b"weightz")
    with pytest.raises(InputError, match="got .* with another model: remove it"):
        one(work(), tmp_path)


def test_a_key_is_of_all_that_a_result_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [work(), replace(work(), title="other", cost=9.0, urgency=2, labels={"x": 1})]
    others = [
        work("other"),
        replace(work(), data=os.getcwd),
        replace(work(), needs=(work(),)),
        replace(work(), layers=("theory",)),
        replace(work(), function=failing),
    ]
    moved = [replace(job(), device="cuda"), replace(job(), title="other", urgency=1, labels={})]
    assert {each.key() for each in moved} == {job().key()}
    different = [work(), *others, job(), job(seed=1), job(61)]
    keys = {each.key() for each in different}
    assert {each.key() for each in same} == {work().key()}
    assert len(keys) == len(different)
    _version("another", monkeypatch)
    assert not {each.key() for each in different} & keys


def test_what_is_needed_is_done_before_also_where_it_comes_last(tmp_path: Path) -> None:
    need = work("need")
    run([replace(work("a"), needs=(need,), cost=1e9), work("b"), need], tmp_path)
    names = [line.split()[0] for line in (tmp_path / "told.txt").read_text().splitlines()]
    assert sorted(names) == ["a", "b", "need"]
    assert names.index("need") < names.index("a")


@pytest.mark.parametrize(
    ("number", "n_jobs"), [(signal.SIGINT, 2), pytest.param(signal.SIGTERM, 1, marks=pytest.mark.thorough)]
)
def test_a_signal_stops_work_and_says_what_is_kept(number: int, n_jobs: int, tmp_path: Path) -> None:
    code = (
        "from decomfl_lab.interrupts import interrupt; import signal;"
        "[signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)];"  # who waits may ignore one
        f"run(works(60.0), root, n_jobs={n_jobs})"
    )
    with started(code, tmp_path, stderr=subprocess.PIPE) as other:
        until(lambda: len(told(tmp_path)) == n_jobs)
        other.send_signal(number)
        error = other.communicate(timeout=60)[1]
    assert f"interrupted; 0 of {RUNS} runs are finished, and kept with those under way in {tmp_path}" in error
    assert not list(tmp_path.glob(f"*/{RESULT_FILE}"))
    assert [result and result[1] for result in run(works(), tmp_path)] == [{"name": f"run-{n}"} for n in range(RUNS)]


def _version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (provenance, a_run, of_run, runs):
        monkeypatch.setattr(module, "code_version", lambda *_: name)


def test_when_the_hours_are_over_what_is_under_way_is_saved_and_another_version_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = one(job(), tmp_path / "whole")
    root = tmp_path / "runs"
    _version("first", monkeypatch)
    train = Run.train

    def slowly(run: Run, *, on_round: Callable[[Progress], None], **kwargs: Any) -> pd.DataFrame:
        """The time is over after nine rounds."""

        def told(at: Progress) -> None:
            if at.round == 9:
                monkeypatch.setattr(runs.time, "monotonic", lambda: 1e9)
            on_round(at)

        return train(run, on_round=told, **kwargs)

    monkeypatch.setattr(Run, "train", slowly)
    rows, facts = one(job(), root, until=time.monotonic() + 3600, resume=True)
    monkeypatch.undo()
    assert facts[SO_FAR] == "8 of 60 rounds"
    assert rows["round"].tolist() == [2, 4, 6, 8]
    assert (set(rows.finished), set(rows.planned), set(rows.examples)) == ({False}, {60}, {400})
    (table,) = root.glob("*/metrics.csv")
    table.write_text(re.sub(r"^8,0\.\d+", "8,0.9999", table.read_text(), flags=re.M))
    _version("second", monkeypatch)
    begun = job().begun(root)
    again = job().result(begun)
    assert again is not None
    assert again[0].equals(rows)  # they are the checkpoint's
    assert begun == table.parent
    assert not any(each.begun(root).exists() for each in (job(seed=1), job(rounds=61)))
    rows, facts = one(job(), root, resume=True)
    assert SO_FAR not in facts
    assert facts["codes"] == ["first", "second"]
    same = [name for name in rows if name != "seconds"]
    pd.testing.assert_frame_equal(rows[same], whole[same])
    _version("third", monkeypatch)
    assert one(job(), root, resume=True)[1]["codes"] == ["first", "second"]  # done, so not done again
    _, anew = one(job(), root)
    assert (anew["code"], "codes" in anew) == ("third", False)


def test_a_run_that_diverged_at_once_has_a_row_of_round_0(tmp_path: Path) -> None:
    wrong = job()
    rows, _ = one(replace(wrong, config=wrong.config.but(lr=1e30)), tmp_path)
    assert (rows["round"].tolist(), rows.diverged.tolist(), rows.finished.tolist()) == ([0], [True], [True])
    assert rows[["test_accuracy", "test_loss", "train_loss"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("given", "order"),
    [({}, "abc"), ({"until": time.monotonic() + 3600}, "bac"), ({"on_result": lambda _: None}, "cab")],
    ids=["the dearest first", "in little time the urgent first, of those the cheap", "as given"],
)
def test_the_order_of_works(given: dict[str, Any], order: str, tmp_path: Path) -> None:
    a, b, c = (replace(work(name), cost=cost) for name, cost in zip("abc", (90.0, 30.0, 10.0), strict=True))
    run([replace(c, urgency=1), a, b], tmp_path, **given)
    assert [line[0] for line in (tmp_path / "told.txt").read_text().splitlines()] == list(order)


def test_each_work_is_told_when_it_is_done_and_what_was_there_first(tmp_path: Path) -> None:
    wanted = [job(4), job(2), work()]
    run([wanted[1]], tmp_path)
    heard: list[str] = []
    run(wanted, tmp_path, on_result=lambda done: heard.append(done.key()))
    assert heard == [wanted[n].key() for n in (1, 0, 2)]


@pytest.mark.parametrize(("count", "n_jobs", "threads"), [(1, 4, 4), (2, 4, 2), (3, 4, 1)])
def test_training_runs_that_are_fewer_than_the_processes_share_these(
    count: int, n_jobs: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def done(_: Work, folder: Path, threads: int) -> str:
        seen.append(threads)
        folder.mkdir(parents=True)
        runs.write_sealed(folder / RESULT_FILE, {"rows": {}, "facts": {}})
        return "done"

    monkeypatch.setattr(runs, "_do", done)
    monkeypatch.setattr(
        Processes, "results", lambda _, calls, *__, **___: [(c[0], c[1](*c[2])) for c in iter(calls, None)]
    )
    run([job(10 + n) for n in range(count)], tmp_path, n_jobs)
    assert seen == [threads] * count
    seen.clear()
    run([work()], tmp_path, n_jobs)
    assert seen == [1]  # what else there is may depend on the number of threads


def test_the_time_left_follows_the_costs_at_the_pace_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Path("a"), Path("b")
    bars = runs.Bars({a: job(30), b: job(90)}, 5, RunBars(), each=False)
    bars.reached(a, Progress(1, 2, 0.0, 0.0, 0.0))  # by an earlier command
    assert bars.left(100.0) == math.inf
    bars.done(a)
    assert bars.left(110.0) == math.inf  # ten seconds are too few to tell a pace by
    assert bars.left(130.0) == pytest.approx(180.0)  # 15 rounds took half a minute, 90 are left
    assert [left_words(seconds) for seconds in (60.0, 840.0, 9000.0, math.inf)] == [
        "about 1 min left", "about 14 min left", "about 2.5 h left", ""
    ]  # fmt: skip


@pytest.mark.thorough
def test_two_commands_at_once_compute_each_key_once_and_share_them(tmp_path: Path) -> None:
    with started("run(works(shared=True), root)", tmp_path) as other:
        until(lambda: told(tmp_path))
        results = run(works(shared=True), tmp_path)
    assert other.returncode == 0
    assert [name for name, _ in told(tmp_path)] == [f"run-{n}" for n in range(RUNS)]
    assert {process for _, process in told(tmp_path)} == {str(other.pid), str(os.getpid())}
    assert [result and result[1] for result in results] == [{"name": f"run-{n}"} for n in range(RUNS)]


def test_processes_compute_elsewhere_and_bring_errors_back(tmp_path: Path) -> None:
    bad = Work(title="bad", function=failing, cost=0.0)
    with pytest.raises(InputError, match="^bad must be right, got wrong$"):
        run([*works(), bad], tmp_path, 2)
    names, others = zip(*told(tmp_path), strict=True)
    assert list(names) == [f"run-{n}" for n in range(RUNS)]
    assert str(os.getpid()) not in others


@pytest.mark.thorough
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    with started("run(works(60.0), root, 2)", tmp_path, stderr=subprocess.DEVNULL) as parent:
        until(lambda: len(told(tmp_path)) == 2)
        parent.kill()
    until(lambda: not any(Path(f"/proc/{process}").exists() for _, process in told(tmp_path)))


@pytest.mark.thorough
def test_a_process_that_is_killed_from_outside_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"processes must not be killed from outside \(too little memory\?\)"):
        run([Work(title="killed", function=killed), *works()], tmp_path, 2)


def killed(folder: Path, report: Report) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_who_is_told_to_stop_does_so_when_it_next_tells_something() -> None:
    heard: list[int] = []
    one = Processes(1)
    calls = iter([("a", processes.tell, (1,)), ("b", processes.tell, (2,))])
    results = one.results(lambda: next(calls, None), heard.append)
    assert next(results) == ("a", None)
    one.stop()
    with pytest.raises(Interrupted):
        next(results)
    assert (heard, one.stopped) == ([1, 2], True)
