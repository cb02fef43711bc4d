"""Commands that are stopped at every event of their disk, and given again.

    python -m tests.restarts COMMAND FOLDER FATES FAULT

Each try is a process that is forked, as it ends in a death: that needs one without threads, so this is apart from
pytest's.
"""

import contextlib
import gc
import gzip
import hashlib
import io
import itertools
import json
import logging
import math
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.cli.main import main
from decomfl_lab.files import LOCK_FILE, file_digest, held, read_sealed, write_atomically
from decomfl_lab.methods.decomfl import DeComFLProjection
from decomfl_lab.optim import MeZO
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs import run as runs
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.runs.provenance import provenance
from hessian import resume
from paper_repro import making
from paper_repro.parts import projection
from paper_repro.workflow import manifest
from paper_repro.workflow.part import Options, made
from paper_repro.workflow.runs import Job, Report, Result, Work
from tests.disk import Disk, Fate

ENDED: Final = "it ended"
UNEQUAL: Final = ("seconds", "metrics_sha256", "date", "time", "files", "key", "csv", "means")
"""Names of what two uninterrupted commands differ in: times, what is computed of times, and digests of it."""


@dataclass(frozen=True)
class Command:
    """What a user gives, once and once more."""

    give: Callable[[Path], object]  # of the folder in which it works; what it prints is a result too, as JSON
    prepare: Callable[[Path], object] = lambda _: None  # what was done in that folder before, by a command that ended


def plain(path: Path) -> Any:
    """What a file says, as values that can be compared; an error where it is half written."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if path.name == manifest.FILE:
        return manifest.wrong(path.parent)
    if path.suffix == ".dcl":
        with RunLog.open(path, write=False) as log:
            return log.header, [repr(entry) for entry in log.entries()], len(content)
    if path.suffix == ".safetensors":
        tensors, values = read_checkpoint(path)
        return {name: tensor.tolist() for name, tensor in tensors.items()}, timeless(values)
    if path.suffix in (".csv", ".gz"):
        return pd.read_csv(io.BytesIO(content)).drop(columns="seconds", errors="ignore").to_json(double_precision=15)
    sealed = read_sealed(path)
    if sealed is None and path.suffix in (".json", ".html"):
        sealed = json.loads(content)
    return content.hex() if sealed is None else timeless(sealed)


def timeless(values: Any) -> Any:
    """The values without those that two equal runs differ in."""
    if isinstance(values, Mapping):
        return {name: timeless(value) for name, value in values.items() if name not in UNEQUAL}
    return [timeless(value) for value in values] if isinstance(values, list | tuple) else values


def state(root: Path, *, between: bool = False) -> dict[str, Any]:
    """What is in all files of a folder but locks, which say nothing if nobody holds them.

    Hidden ones are not looked into: ``between`` two tries they may be there, later not.
    """
    found = {}
    for path in sorted(root.rglob("*")):
        hidden = path.name.startswith(".")
        if path.is_file() and path.suffix != ".lock" and not (hidden and (between or path.name == LOCK_FILE)):
            found[path.relative_to(root).as_posix()] = None if hidden else plain(path)
    return found


def forked(act: Callable[[], Any]) -> Any:
    """What ``act`` returns in a process of its own; None where that was killed, its traceback where it failed."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            found = act()
        except BaseException:
            found = traceback.format_exc()
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else None


def given(command: Command, folder: Path, disk: Disk | None = None, fault: str = "") -> dict[str, Any]:
    """What comes of a command, in this process: how it ended, what it said, its result, and what its disk saw."""
    said, printed, code = io.StringIO(), io.StringIO(), ENDED
    logging.basicConfig(stream=said, force=True)
    # Each look at a clock finds it a millisecond later: equal commands write equal bytes.
    ticks = itertools.count()
    time.monotonic = time.perf_counter = lambda: next(ticks) / 1000
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        if disk is not None:
            disk.install()
        FAULTS[fault]()
        try:
            command.give(folder)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    result = timeless(json.loads(printed.getvalue() or "{}")) if code == ENDED else {}
    own = {} if disk is None else {"events": disk.events, "made": sorted(disk.made)}
    return {"code": code, "said": said.getvalue(), "result": result, **own}


def left_by(root: Path) -> str:
    """What a death has left, in short: a temporary file counts by its name alone, and a lock without its process."""
    found = []
    for path in sorted(root.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.name.endswith(".tmp") else b""
        content = re.sub(rb"\d+", b"N", content) if path.name.endswith(".lock") else content
        name = re.sub(r"[0-9a-f]{12}\.tmp", "tmp", path.relative_to(root).as_posix())
        found.append((name, hashlib.sha256(content).hexdigest()))
    return repr(sorted(found))


def walk(command: Command, folder: Path, fates: Sequence[Fate], *, rotate: bool, fault: str = "") -> dict[str, Any]:
    """Stop the command at each of its events, and give it again.

    Args:
        command: The command.
        folder: A folder to work in, which is not there yet.
        fates: How it is stopped.
        rotate: Whether an event has one of the fates, in turn, in place of all.
        fault: A planted fault, by its name in ``FAULTS``.

    Returns:
        The events, the number of deaths and that of different folders that they left, files that came to be past the
        disk, and what came out otherwise than uninterrupted.
    """
    begin, at = folder / "begin", folder / "at"
    begin.mkdir(parents=True)
    forked(lambda: command.prepare(begin))

    def afresh() -> Path:
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(begin, at)
        return at

    # What is imported and compiled is there before the first fork.
    for warm in (afresh(), at):
        given(command, warm)
    gc.freeze()
    afresh()
    whole = forked(lambda: given(command, at, Disk(at), fault))
    if whole["code"] != ENDED:
        raise RuntimeError(f"{whole['code']} {whole['said']}")
    wanted = forked(lambda: state(at))
    unseen = [name for name in wanted if str(at.resolve() / name) not in whole["made"] and not (begin / name).exists()]

    def again() -> str:
        """What is wrong with the folder, and with the command that is given once more."""
        state(at, between=True)
        found = given(command, at, Disk(at), fault)
        if found["code"] != ENDED:
            return f"{found['code']} {found['said']}"
        now = json.loads(json.dumps(state(at)))
        others = [name for name in sorted({*wanted} | {*now}) if wanted.get(name) != now.get(name)]
        return ", ".join(others + ["the result"] * (found["result"] != whole["result"]))

    deaths, wrong = 0, []
    seen: dict[str, str] = {}
    for n, event in enumerate(whole["events"], 1):
        for fate in [fates[n % len(fates)]] if rotate else fates:
            afresh()
            died = forked(lambda n=n, fate=fate: given(command, at, Disk(at, n, fate), fault))
            deaths += 1
            # The same files have the same future.
            left = left_by(at)
            if left not in seen:
                seen[left] = forked(again)
            if seen[left]:
                wrong.append(f"{fate.value} at event {n}, {event} ({died['code'] if died else 'it died'}): {seen[left]}")
    return {"events": whole["events"], "deaths": deaths, "left": len(seen), "unseen": unseen, "wrong": wrong}


# --- the commands -----------------------------------------------------------------------------------------------------


def cli(words: str, folder: Path) -> None:
    """A command of the command line; an error if it does not end well."""
    if code := main([word.replace("FOLDER", str(folder)) for word in words.split()]):
        raise RuntimeError(f"exit code {code}")


TRAIN: Final = (
    "train --data digits --model logistic --clients 4 --sampled 2 --rounds 3 --eval-every 2 --perturbations 2 --json "
    "--out FOLDER/run"
)


def saved_each(seconds: float) -> Callable[[Path], None]:
    """A training run that is saved so often."""

    def give(folder: Path) -> None:
        runs.CHECKPOINT_SECONDS = seconds
        cli(TRAIN, folder)

    return give


INPUTS: Final = torch.linspace(-1, 1, 480).view(80, 6).sin()
CLIENTS: Final = list(zip(INPUTS.split(20), (INPUTS[:, 0] > 0).long().split(20), strict=True))


def net() -> nn.Module:
    """A small network, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def three_train(folder: Path) -> None:
    """A run of three clients."""
    lab.train(net(), clients=CLIENTS[:3], test=CLIENTS[3], out=folder / "run", rounds=2, sampled=2, lr=0.05, batch_size=8)


def a_fourth_joins(folder: Path) -> None:
    """The run goes on with one more client."""
    runs.CHECKPOINT_SECONDS = 0.0
    run = lab.load(folder / "run", net(), clients=CLIENTS, test=CLIENTS[3])
    run.more(4 - run.round) if run.round < 4 else run.train(out=folder / "run")


def tune(folder: Path) -> None:
    """MeZO, with a state and weights that its user keeps after every step."""
    model, kept = net(), folder / "state.safetensors"
    optimizer = MeZO(model.named_parameters(), 0.05, log=folder / "run.dcl", digest_every=2, trust=True)
    with held(folder):
        if not kept.exists():
            write_checkpoint(kept, dict(model.state_dict()), optimizer.state_dict())
        weights, values = read_checkpoint(kept)
        model.load_state_dict(weights)
        optimizer.load_state_dict(values)
        while optimizer.steps < 3:
            optimizer.step(lambda: cross_entropy(model(CLIENTS[0][0]), CLIENTS[0][1]))
            write_checkpoint(kept, dict(model.state_dict()), optimizer.state_dict())
        optimizer.seal()


def measure(folder: Path) -> None:
    """κ, each product of which is kept."""
    resume._SHARE = math.inf
    words = "kappa --data digits --model logistic --train-steps 1 --examples 20 --products 6 --json"
    cli(f"{words} --checkpoint FOLDER/kappa.safetensors", folder)


def counted(folder: Path, report: Report, rows: int) -> Result:
    """A work that leaves a file for others beside its rows."""
    write_atomically(folder / "model", "weights")
    facts = provenance(load_dataset("digits"))
    return pd.DataFrame({"round": range(rows)}), {**facts, "files": {"model": file_digest(folder / "model")}}


def works(_: Options) -> list[Work | Job]:
    """A run, and a work that needs another."""
    need = Work(title="need", function=counted, arguments={"rows": 2})
    config = TrainConfig(DeComFLProjection(perturbations=2), data="digits", model="logistic", clients=4, sampled=2)
    job = Job(config.but(batch_size=4, rounds=1, eval_every=1), {"series": "a"}, "run")
    return [job, replace(need, title="other", arguments={"rows": 3}, needs=(need,))]


def published(first: int) -> Callable[[Path], None]:
    """A part of the paper, of the first of these works: computed, added to a record, drawn as a table, and told."""

    def give(folder: Path) -> None:
        runs.CHECKPOINT_SECONDS = 0.0
        projection.jobs = lambda options: works(options)[:first]  # type: ignore[assignment, return-value]
        projection.make = lambda rows, *_: made("projection", [], tables={"projection": rows})  # type: ignore[assignment]
        # The page has the sections as JSON, which takes no time, behind the title that such a page is known by.
        making.render_report = lambda sections, **_: json.dumps(["<title>decomfl-lab", *timeless(sections)], default=str)
        making.answer = list
        words = "paper --only projection --scale smoke --jobs 1 --live-only --json"
        cli(f"{words} --runs FOLDER/runs-{first} --record FOLDER/record --out FOLDER/out-{first}", folder)

    return give


COMMANDS: Final = {
    "run": Command(saved_each(0.0)),
    "run that is saved at its end": Command(saved_each(1e9)),
    "run with joiners": Command(a_fourth_joins, three_train),
    "MeZO": Command(tune),
    "kappa": Command(measure),
    "paper": Command(published(2), published(1)),
}


# --- faults -----------------------------------------------------------------------------------------------------------

FAULTS: Final[dict[str, Callable[[], object]]] = {"": lambda: None}


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, place, how, fault = sys.argv[1:]
    fates = [Fate[each] for each in how.strip("*").split(",")]
    print(json.dumps(walk(COMMANDS[name], Path(place), fates, rotate="*" in how, fault=fault)), flush=True)
    os._exit(0)  # libraries complain of what is left
