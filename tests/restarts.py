"""Commands that are stopped at every event of their disk, and given again.

    python -m tests.restarts FOLDER COMMAND FATES FAULT ...

Each try is a process that is forked, as it ends in a death: that needs one without threads, so this is apart from
pytest's. FATES are first letters, of which each event has all, or with a ``*`` behind them one in turn; of a FAULT, ""
for none, the first thing that shows it is told.
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
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.optim import MeZO
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs import run as runs
from decomfl_lab.storage import checkpoint_file, files
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.files import LOCK_FILE, file_digest, held, held_file, read_sealed, write_atomically
from decomfl_lab.storage.provenance import provenance
from hessian import effective_rank, lanczos, resumption
from paper_repro import pipeline
from paper_repro.parts import projection
from paper_repro.workflow import manifest
from paper_repro.workflow.part import Options, made
from paper_repro.workflow.runs import Job, Report, Result, Work
from tests.decomfl_lab.runs.variants import OTHERS, SMALL, VARIANTS
from tests.disk import Disk, Fate
from tests.hessian.operators.test_operator import STEPS, VALUES, WAYS, asked
from tests.hessian.spectra import Watched, rotated

UNEQUAL: Final = ("seconds", "metrics_sha256", "date", "time", "files", "key", "csv", "means")
"""Names of what two uninterrupted commands differ in: times, what is computed of times, and digests of it."""


@dataclass(frozen=True)
class Command:
    """What a user gives, once and once more, in a folder."""

    give: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda _: None  # what was given there before, and ended


def timeless(values: Any) -> Any:
    """The values without those that two equal commands differ in."""
    if isinstance(values, Mapping):
        return {name: timeless(value) for name, value in values.items() if name not in UNEQUAL}
    return [timeless(value) for value in values] if isinstance(values, list | tuple) else values


def plain(path: Path) -> Any:
    """What a file says, as values that can be compared; an error where it is half written."""
    if path.name == manifest.FILE:
        return manifest.wrong(path.parent)
    if path.suffix == ".dcl":
        with RunLog.open(path, write=False) as log:
            return log.header, [repr(entry) for entry in log.entries()], path.stat().st_size
    if path.suffix == ".safetensors":
        tensors, values = read_checkpoint(path)
        return {name: repr(tensor.tolist()) for name, tensor in tensors.items()}, timeless(values)
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.suffix in (".csv", ".gz"):
        return pd.read_csv(io.BytesIO(content)).drop(columns="seconds", errors="ignore").to_json(double_precision=15)
    sealed = read_sealed(path)
    if sealed is None and path.suffix in (".json", ".html"):
        sealed = json.loads(content)
    return content.hex() if sealed is None else timeless(sealed)


def state(root: Path, *, between: bool = False) -> dict[str, Any]:
    """What is in all files of a folder but locks, which say nothing if nobody holds them.

    Hidden ones are not looked into: ``between`` two tries they may be there, later not.
    """
    found = {}
    for path in sorted(root.rglob("*")):
        hidden = path.name.startswith(".")
        if path.is_file() and path.suffix != ".lock" and not (hidden and (between or path.name == LOCK_FILE)):
            found[path.relative_to(root).as_posix()] = "hidden" if hidden else plain(path)
    return found


def left_by(root: Path) -> str:
    """What a death has left, in short: a temporary file counts by its name alone, and a lock without its process."""
    found = []
    for path in sorted(root.rglob("*")):
        content = path.read_bytes() if path.is_file() and path.suffix != ".tmp" else b""
        name = re.sub(r"[0-9a-f]{12}\.tmp", "tmp", path.relative_to(root).as_posix())
        found.append((name, hashlib.sha256(re.sub(rb"process \d+", b"process N", content)).hexdigest()))
    return repr(sorted(found))


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


def given(give: Callable[[Path], object], disk: Disk, fault: str = "") -> dict[str, Any]:
    """What comes of a command, in this process: how it ended, its result, and what its disk saw."""
    said, printed = io.StringIO(), io.StringIO()
    logging.basicConfig(stream=said, force=True)
    # Each look at a clock finds it a millisecond later: equal commands write equal bytes.
    ticks = itertools.count()
    time.monotonic = time.perf_counter = lambda: next(ticks) / 1000
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
        disk.install()
        FAULTS[fault]()
        try:
            give(Path(disk.root))
            error = ""
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}; {said.getvalue()}"
    result = timeless(json.loads(printed.getvalue() or "{}")) if not error else {}
    return {"error": error, "result": result, "events": disk.events, "made": sorted(disk.made)}


def walk(command: Command, folder: Path, fates: Sequence[Fate], *, rotate: bool, fault: str) -> dict[str, Any]:
    """Stop the command at each of its events, and give it again.

    Returns:
        The events, the number of deaths and that of different folders that they left, files that came to be past the
        disk, and what came out otherwise than uninterrupted.
    """
    begin, at = folder / "begin", folder / "at"
    begin.mkdir(parents=True)
    forked(lambda: given(command.prepare, Disk(begin)))

    def afresh() -> Path:
        shutil.rmtree(at, ignore_errors=True)
        return Path(shutil.copytree(begin, at))

    # What is imported and compiled is there before the first fork.
    for warm in (afresh(), at):
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            command.give(warm)
    gc.freeze()
    afresh()
    whole = forked(lambda: given(command.give, Disk(at), fault))
    if whole["error"]:
        raise RuntimeError(whole["error"])
    wanted = forked(lambda: state(at))
    unseen = [name for name in wanted if str(at.resolve() / name) not in whole["made"] and not (begin / name).exists()]

    def again() -> str:
        """What is wrong with the folder, and with the command that is given once more."""
        state(at, between=True)
        found = given(command.give, Disk(at), fault)
        now = json.loads(json.dumps(state(at)))
        others = [name for name in sorted({*wanted} | {*now}) if wanted.get(name) != now.get(name)]
        return str(found["error"]) or ", ".join(others + ["the result"] * (found["result"] != whole["result"]))

    deaths, wrong = 0, []
    seen: dict[str, str] = {}
    for n, event in enumerate(whole["events"], 1):
        for fate in [fates[n % len(fates)]] if rotate else fates:
            afresh()
            forked(lambda n=n, fate=fate: given(command.give, Disk(at, n, fate), fault))
            deaths += 1
            # The same files have the same future.
            left = left_by(at)
            if left not in seen:
                seen[left] = forked(again)
            if seen[left]:
                wrong.append(f"{fate.value} at event {n}, {event}: {seen[left]}")
        if wrong and fault:
            break
    return {"events": whole["events"], "deaths": deaths, "left": len(seen), "unseen": unseen, "wrong": wrong}


# --- the commands -----------------------------------------------------------------------------------------------------

TINY: Final = SMALL.but(rounds=3, perturbations=4, lr=0.01, batch_size=16, lr_schedule={2: 0.005})
INPUTS: Final = torch.linspace(-1, 1, 480).view(80, 6).sin()
CLIENTS: Final = list(zip(INPUTS.split(20), (INPUTS[:, 0] > 0).long().split(20), strict=True))


def train(changes: Mapping[str, Any], saved: float, folder: Path) -> None:
    """A run, which is saved every so many seconds."""
    runs.CHECKPOINT_SECONDS = saved
    runs.Run(TINY.but(**changes)).train(out=folder / "run")


def net() -> nn.Module:
    """A small network, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def three_train(folder: Path) -> None:
    """A run of three clients."""
    lab.train(
        net(), clients=CLIENTS[:3], test=CLIENTS[3], out=folder / "run", rounds=2, sampled=2, lr=0.05, batch_size=8
    )


def a_fourth_joins(folder: Path) -> None:
    """The run goes on with one more client."""
    runs.CHECKPOINT_SECONDS = 0.0
    run = lab.load(folder / "run", net(), clients=CLIENTS, test=CLIENTS[3])
    run.more(4 - run.round) if run.round < 4 else run.train(out=folder / "run")


def tune(folder: Path) -> None:
    """MeZO, with a state and weights that its user keeps, before the first step and after each."""
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


def cli(words: str, folder: Path) -> None:
    """A command of the command line; an error if it does not end well."""
    if code := main([word.replace("FOLDER", str(folder)) for word in words.split()]):
        raise RuntimeError(f"exit code {code}")


def measure(folder: Path) -> None:
    """κ of a network, each product of which is kept."""
    resumption.SHARE = math.inf
    words = "kappa --data digits --model logistic --train-steps 1 --examples 20 --products 6 --json"
    cli(f"{words} --checkpoint FOLDER/kappa.safetensors", folder)


def rank(settings: Mapping[str, Any], folder: Path) -> None:
    """κ of a matrix."""
    resumption.SHARE = math.inf
    with held_file("checkpoint", folder / "kappa.safetensors"):
        found = effective_rank(**asked(dict(settings))[1], seed=3, checkpoint=folder / "kappa.safetensors")
    print(json.dumps(found.to_json()))


def krylov(settings: Mapping[str, Any], folder: Path) -> None:
    """Lanczos vectors of a matrix."""
    resumption.SHARE = math.inf
    with held_file("checkpoint", folder / "lanczos.safetensors"):
        found = lanczos(Watched(rotated(VALUES)), seed=0, checkpoint=folder / "lanczos.safetensors", **settings)
    tensors = (found.projected, found.coupling, *found.vectors)
    print(json.dumps([found.products, *(repr(tensor.tolist()) for tensor in tensors)]))


def counted(folder: Path, report: Report, rows: int) -> Result:
    """A work that leaves a file for others beside its rows."""
    write_atomically(folder / "model", "weights")
    facts = provenance(load_dataset("digits"))
    return pd.DataFrame({"round": range(rows)}), {**facts, "files": {"model": file_digest(folder / "model")}}


def publish(first: int, folder: Path) -> None:
    """A part of the paper, of a run and a work that needs another: computed, recorded, and drawn as a table."""

    def works(_: Options) -> list[Work | Job]:
        need = Work(title="need", function=counted, arguments={"rows": 2})
        job = Job(TINY.but("decomfl-projection", rounds=1, eval_every=1, lr_schedule={}), {"series": "a"}, "run")
        return [job, replace(need, title="other", arguments={"rows": 3}, needs=(need,))][:first]

    runs.CHECKPOINT_SECONDS = 0.0
    projection.jobs = works  # type: ignore[assignment]
    projection.make = lambda rows, *_: made("projection", [], tables={"projection": rows})  # type: ignore[assignment]
    # The page has the sections as JSON, which takes no time, behind the title that such a page is known by.
    pipeline.render_report = lambda sections, **_: json.dumps(["<title>decomfl-lab", *timeless(sections)], default=str)
    pipeline.answer = list
    words = f"paper --only projection --scale smoke --jobs 1 --live-only --json --runs FOLDER/runs-{first}"
    cli(f"{words} --record FOLDER/record --out FOLDER/out-{first}", folder)


COMMANDS: Final = {
    "run": Command(partial(train, {}, 0.0)),
    "run that is saved at its end": Command(partial(train, {}, 1e9)),
    "run with joiners": Command(a_fourth_joins, three_train),
    "MeZO": Command(tune),
    "kappa": Command(measure),
    "paper": Command(partial(publish, 2), partial(publish, 1)),
    **{f"run of {changes}": Command(partial(train, changes, 1e9)) for changes in (*VARIANTS, *OTHERS)},
    **{f"kappa by {way.id}": Command(partial(rank, way.values[0])) for way in WAYS},
    **{f"lanczos by {way}": Command(partial(krylov, way)) for way in STEPS},
}


# --- faults -----------------------------------------------------------------------------------------------------------


def _past_the_disk(path: Path, content: bytes) -> None:
    subprocess.run(["dd", f"of={path}", "status=none"], input=content, check=True)


HOST: Final = re.escape(socket.gethostname())
FAULTS: Final[dict[str, Callable[[], object]]] = {
    "": lambda: None,
    "nothing is synced": lambda: setattr(os, "fsync", lambda _: None),
    "a log is behind its checkpoint": lambda: setattr(RunLog, "sync", lambda _: None),
    "a checkpoint is written in place": lambda: setattr(checkpoint_file, "write_atomically", Path.write_bytes),
    "a file is written past the disk": lambda: setattr(checkpoint_file, "write_atomically", _past_the_disk),
    "what killed writers left stays": lambda: setattr(files, "_TEMPORARY", re.compile("(?!)")),
    "who was killed while it signed has the lock": lambda: setattr(files, "_SIGNED", re.compile(f".* {HOST}")),
    "a digest that is half there is a changed entry": lambda: setattr(RunLog, "_mended", lambda *_: None),
    "a record is written before it is listed": lambda: setattr(manifest, "_beside", lambda path: path),
}
"""What is planted in a process."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, *jobs = sys.argv[1:]
    results = []
    for n, (name, letters, fault) in enumerate(zip(jobs[::3], jobs[1::3], jobs[2::3], strict=True)):
        fates = [fate for fate in Fate if fate.name[0] in letters]
        results.append(walk(COMMANDS[name], Path(place, str(n)), fates, rotate="*" in letters, fault=fault))
    print(json.dumps(results), flush=True)
    os._exit(0)  # libraries complain of what is left
