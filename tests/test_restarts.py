"""Never poorer for being killed: whatever event of the disk fails, the same command ends as if nothing had been."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.processes import environment
from tests.decomfl_lab.runs.variants import OTHERS, VARIANTS
from tests.disk import Fate
from tests.hessian.operators.test_operator import STEPS, WAYS

ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "NUMBA", "MKL")}
IN_TURN = "".join(fate.name[0] for fate in Fate) + "*"
LEAST = {"run": 80, "run that is saved at its end": 40, "run with joiners": 60, "MeZO": 35, "kappa": 25, "paper": 120}
"""Commands, with the least number of events that each has."""
PLANTED = [
    ("kappa", "P", "nothing is synced"),
    ("run with joiners", "P", "a log is behind its checkpoint"),
    ("MeZO", "P", "a log is behind its checkpoint"),
    ("kappa", "K", "a checkpoint is written in place"),
    ("kappa", "K", "a file is written past the disk"),
    ("kappa", "K", "what killed writers left stays"),
    ("kappa", "K", "who was killed while it signed has the lock"),
    ("MeZO", "K", "a digest that is half there is a changed entry"),
]
"""Commands, how they are stopped, and the fault in them."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")


def walked(folder: Path, *jobs: tuple[str, str, str]) -> list[dict[str, Any]]:
    """What ``tests.restarts`` says of these commands, fates and faults."""
    words = [sys.executable, "-m", "tests.restarts", str(folder), *(word for job in jobs for word in job)]
    root = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(words, env=environment(ONE_THREAD | root), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "jobs",
    [
        [("run that is saved at its end", IN_TURN, ""), PLANTED[2]],
        *(
            pytest.param([(name, fates, "")], marks=pytest.mark.thorough)
            for name, fates in (
                *((name, IN_TURN) for name in ("run", "run with joiners", "kappa", "MeZO")),
                *((name, IN_TURN.strip("*")) for name in LEAST),
            )
        ),
        pytest.param(PLANTED, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_a_command_that_is_stopped_at_any_event_of_its_disk_ends_as_if_it_had_not_been_but_for_planted_faults(
    jobs: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    for (command, fates, fault), found in zip(jobs, walked(tmp_path, *jobs), strict=True):
        events = len(found["events"])
        print(f"{command}: {events} events, {found['deaths']} deaths, which left {found['left']} different folders")
        if fault:
            assert found["wrong"] or found["unseen"], f"{fault} ({command})"
        else:
            assert (found["wrong"], found["unseen"]) == ([], [])
            assert events >= LEAST[command]
            assert found["deaths"] == events * (1 if "*" in fates else len(Fate))


OTHERS_OF_THEIR_KIND = [
    *(f"lanczos by {way}" for way in reversed(STEPS)),
    *(f"kappa by {way.id}" for way in WAYS),
    *(f"run of {changes}" for changes in (*VARIANTS, *OTHERS)),
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", OTHERS_OF_THEIR_KIND)
def test_other_ways_to_train_and_to_measure_survive_a_kill_at_any_event(name: str, tmp_path: Path) -> None:
    (found,) = walked(tmp_path, (name, "K", ""))
    assert (found["wrong"], found["deaths"] > 20) == ([], True)


@pytest.mark.thorough
def test_a_record_that_is_written_before_it_is_listed_is_seen(tmp_path: Path) -> None:
    (found,) = walked(tmp_path, ("paper", "K", "a record is written before it is listed"))
    assert "must be the file that" in found["wrong"][0]
