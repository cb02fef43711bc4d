"""What a folder holds of a run: it is saved there, found again, and gone on with.

A checkpoint has everything. Where it is gone, a log of scalars has it too (``repeat``): rounds are not measured again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from decomfl_lab.checkpoint import Saved, read_checkpoint, understood, write_checkpoint
from decomfl_lab.errors import InputError, require
from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.federations.newcomers import with_newcomers
from decomfl_lab.files import write_atomically
from decomfl_lab.noise import STREAM_VERSION
from decomfl_lab.objectives.trees import tensors
from decomfl_lab.plugins import OWN
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.runs.beginning import said
from decomfl_lab.runs.config import TrainConfig, config_like, read_config
from decomfl_lab.runs.course import Course
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE, read_rows
from decomfl_lab.runs.joining import data_then, differing
from decomfl_lab.runs.provenance import PROVENANCE_FILE, code_version, read_provenance, write_provenance
from decomfl_lab.runs.told import Progress

__all__ = ["logged", "publish", "read_saved", "repeat", "require_own", "require_same", "rests_on_log", "resume", "save"]

PROBED = 1e-3
"""By how much a loss may differ, relative to it, where it is computed by other kernels or on another device."""

logger = logging.getLogger("decomfl_lab")


def save(run: Course, folder: Path) -> None:
    """Write all that the run goes on from, and what people read of it; each file whole or not at all."""
    tensors, values = run.federation.save()
    by_records = run.federation.by_records
    if by_records is not None and by_records.log is not None:
        by_records.log.sync()  # no checkpoint is ahead of its log
    state = {
        "federation": values,
        "rows": run.rows,
        "losses": run.losses,
        "seconds": run.seconds,
        "first": run.first,
        "constants": run.constants(),
        "probe": run.probe(),
        "config": run.config.to_dict(),
        "data": run.dataset.digest,
        "code": code_version(),
    }
    write_checkpoint(folder / CHECKPOINT_FILE, tensors, state | run.hands)
    publish(run, folder)
    run.saved = run.round


def publish(run: Course, folder: Path) -> None:
    """Write what people read of the run: configuration, provenance, table."""
    write_atomically(folder / CONFIG_FILE, run.config.to_toml())
    write_provenance(folder, run.dataset, **run.hands)
    write_atomically(folder / METRICS_FILE, run.metrics.to_csv(index=False))


def read_saved(
    folder: Path, understand: Callable[[Mapping[str, Any], str], TrainConfig]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The checkpoint in a folder; InputError if there is none, or its configuration is not that of config.toml.

    Args:
        folder: The folder.
        understand: The configuration of plain values and their origin; it says which code these may name.
    """
    file, written = folder / CHECKPOINT_FILE, folder / CONFIG_FILE
    require(file.exists(), "folder", "be one in which a run was saved", str(folder))
    tensors, saved = read_checkpoint(file)
    with understood(file):
        ours = understand(saved["config"], f"run {folder}")
    if written.exists():
        theirs = config_like(ours, read_config(written), str(written))
        a, b = theirs.to_dict(), ours.to_dict()
        others = [name for name in differing(theirs, ours) if name != "rounds"]
        if others:
            found = ", ".join(f"{name} = {a.get(name)!r} for {b.get(name)!r}" for name in others)
            raise InputError(
                f"{written} must be as the run left it (only rounds may differ), got {found}: put that back, or remove "
                "the file, which the checkpoint does not need; another run needs another folder"
            )
    return tensors, saved


def require_own(config: TrainConfig, call: str, **given: Any) -> None:
    """InputError that shows the call to write where what is given lacks something that the run's user brought.

    Args:
        config: The run.
        call: The call up to the arguments in question, as ``lab.load('runs/a'``.
        given: The arguments in question, of model, loss and clients; None for what is not given.
    """
    kept = {"model": config.model, "loss": config.loss, "clients": config.data}
    wanted = [name for name in kept if name in given and kept[name].split(" ")[0] == OWN]
    if lacking := [name for name in wanted if given[name] is None]:
        again = "".join(f", {name}={name}" for name in wanted) + ", test=test" * ("clients" in wanted)
        raise InputError(
            f"{' and '.join(lacking)} must be given again, as {call}{again}): the run trained its user's own, got None"
        )


def resume(run: Course, folder: Path, *, any_code: bool) -> None:
    """Be at the round of the folder's checkpoint; InputError if it is damaged, or of another run, model or loss."""
    tensors, saved = read_saved(folder, partial(config_like, run.config))
    done = saved["federation"]["round"]
    require_same(run, saved, folder, done)
    _take_over(run, folder, saved, done, any_code=any_code)
    then, now = tensors["x"].numel(), run.federation.x.numel()
    require(then == now, "model", f"have d = {then}, as that of the run in {folder}", now)
    kept = saved.get("constants", run.constants())  # older checkpoints have none
    rule = f"have the frozen parameters, buffers and padding rows of the run in {folder}"
    require(kept == run.constants(), "model", rule, f"others ({run.constants()} for {kept})")
    probe = saved.get("probe")
    state = tensors, saved["federation"]
    if saved["config"]["clients"] < run.config.clients:
        state = _joined(run, folder, state)
    run.federation.load(state)
    run.rows[:], run.losses[:], run.seconds = saved["rows"], saved["losses"], saved["seconds"]
    run.first = saved.get("first")
    # The loss of the same examples at the loaded x: it can be asked only now that the run is there.
    if probe is not None and (now_ := run.probe()) is not None:
        same = math.isclose(probe, now_, rel_tol=PROBED, abs_tol=1e-6)
        require(same, "model and loss", f"give the loss {probe:.6g} that they gave in {folder}", now_)


def _joined(run: Course, folder: Path, state: Saved) -> Saved:
    """A saved state of fewer clients, with all that those need who join."""
    federation, path = run.federation.by_records, folder / LOG_FILE
    if federation is None or federation.follows:
        return state  # they are sent a model, or the records of the log that is gone on with
    if run.x0 is None:
        require(run.round == 0, "run", f"be at round 0 to take clients more than {folder} has", run.round)
        run.x0 = federation.observer.snapshot()

    def before(r: int) -> tuple[RoundRecord, ...] | None:
        if not path.exists():
            rule = f"be there, or the server keep a model: clients that join need the records before round {r}"
            require(federation.server.replica is not None, f"log {path}", rule, "none")
            return None
        with RunLog.open(path, write=False) as log:
            require(len(log) >= r, f"log {path}", f"have the rounds before {r}", len(log))
            return log.records(0, r)

    x0 = None
    if path.exists():
        with RunLog.open(path, end=0, write=False) as log:
            require_same(run, log.header, path, state[1]["round"])
            x0 = log.header.get("x0")
    return with_newcomers(federation, state, run.x0, x0, before)


def _take_over(run: Course, folder: Path, facts: Mapping[str, Any], done: int, *, any_code: bool) -> None:
    """Have the hands of the run in the folder, at round ``done``; InputError if it may not go on here."""
    run.resolution.over = done > 0  # the first rounds have been looked at then
    for name, own in run.hands.items():
        earlier = facts.get(name, [facts["code"]] if name == "codes" else [])
        run.hands[name] = list(dict.fromkeys([*earlier, *own]))
    if facts["code"] != code_version() and not any_code:
        raise InputError(f"out must hold a run of this code ({code_version()}), got one of {facts['code']}")
    least = f"be at least the {done} of the run in {folder}"
    require(run.config.rounds >= done, "rounds", least, run.config.rounds)


def require_same(run: Course, saved: Mapping[str, Any], folder: Path, done: int) -> None:
    """InputError that names what differs where a saved run is not this one, in more than its length.

    Clients may have joined too, after the rounds that are done.
    """
    earlier = config_like(run.config, saved["config"], "the saved run").but(rounds=run.config.rounds)
    others = differing(earlier, run.config, done)
    if saved["data"] != data_then(earlier, run.config, run.dataset):
        others.append("the examples, or their order" if run.config.data == OWN else "the examples")
    if others:
        what = f"hold the same run (only rounds may differ), got {folder}, which differs in {', '.join(others)}"
        join = "; clients more join by lab.load(folder, ..., clients=...)"
        hint = join * (run.config.clients > earlier.clients and run.config.joined == earlier.joined)
        raise InputError(f"out must be empty or {what}{hint}")


def rests_on_log(run: Course, folder: Path) -> bool:
    """Whether the folder has all of a run but its checkpoint, and records from which that can be had again."""
    federation = run.federation.by_records
    records_say_all = federation is not None and not federation.follows
    kept = all((folder / name).exists() for name in (LOG_FILE, METRICS_FILE, PROVENANCE_FILE))
    return kept and records_say_all and not run.config.method.drifts


def repeat(run: Course, folder: Path, on_round: Callable[[Progress], None] | None) -> None:
    """Be at the last evaluation in the folder, whose checkpoint is gone, by its log.

    The rounds after it are computed again, as train_loss is the mean of all losses between two evaluations. Any
    version of the code may go on, as it is compared with the digests that it has the bits of then.
    """
    federation, path = run.federation.by_records, folder / LOG_FILE
    assert federation is not None
    with RunLog.open(path, write=False) as log:
        require_same(run, log.header, folder, len(log))
        _take_over(run, folder, {"devices": []} | read_provenance(folder), len(log), any_code=True)
        x0, stream = federation.observer.digest(), log.header.get("stream")
        require(stream == STREAM_VERSION, f"stream of {path}", f"be {STREAM_VERSION}", stream)
        require(log.header.get("x0") == x0, f"x_0 of {path}", f"have the digest {x0}", log.header.get("x0"))
        table = read_rows(folder / METRICS_FILE)
        rows = [row for row in table if run.config.evaluates(int(row["round"])) and row["round"] <= len(log)]
        last = rows[-1] if rows else {"round": 0}
        if not (end := int(last["round"])):
            return
        logger.info(f"no {folder / CHECKPOINT_FILE}: rounds up to {end} are those of {path}, and not measured again")
        for entry in log.entries(0, end):
            federation.repeat(entry)
            found = federation.observer.digest() if entry.digest else entry.digest
            what = f"model after round {entry.record.round} of {path}"
            require(found == entry.digest, what, f"have the digest {entry.digest}", found)
            if on_round is not None:
                scalars = federation.ledger.scalars_per_client
                on_round(Progress(run.round, run.config.rounds, float("nan"), last["test_accuracy"], scalars))
    sent, wire = federation.ledger.bytes, last["wire_bytes"]
    require(wire == sent, f"wire_bytes of round {end} in {folder / METRICS_FILE}", f"be {sent}, as in {path}", wire)
    run.rows[:], run.seconds = rows, last["seconds"]


@contextmanager
def logged(run: Course, out: Path) -> Iterator[None]:
    """Write the folder's log inside, where records say all; later rounds than the present are cut from it."""
    federation, path = run.federation.by_records, out / LOG_FILE
    if federation is None:
        yield
    elif run.round and not path.exists() and not federation.follows:
        logger.info(f"no {path}: it would have to begin at round 0, so the run goes on without one")
        yield
    else:
        goes_on = bool(run.round) or (federation.follows and path.exists())
        end = None if federation.follows else run.round
        with RunLog.open(path, end=end) if goes_on else RunLog.create(path, *_identity(run, federation)) as log:
            require_same(run, log.header, path, len(log))
            if log.header["config"].get("clients", run.config.clients) < run.config.clients:
                log.rewrite(path, _header_with_newcomers(run, log.header))
            if len(log) < run.round:
                remedy = "" if federation.follows else ", or remove it to go on without one"
                raise InputError(
                    f"log {path} must have the {run.round} rounds of the run, got {len(log)}: put a copy of it "
                    f"back{remedy}"
                )
            federation.log_to(log)
            try:
                yield
            finally:
                federation.log_to(None)


def _identity(run: Course, federation: DeComFLFederation) -> tuple[dict[str, Any], bytes]:
    """What the log says of a run at round 0: enough to have its model again without the data; perhaps x_0 too."""
    inputs = next(tensors(run.dataset.train_images))
    start, packed = said(run.config, run.module, run.layout, federation.observer)
    header = {
        "config": run.config.to_dict(),
        "data": run.dataset.digest,
        "source": run.dataset.source,
        "shape": list(inputs.shape[1:]),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "classes": run.dataset.classes,
        "d": federation.x.numel(),
        "x0": federation.observer.digest(),
        "run_seed": federation.server.run_seed,
        "stream": STREAM_VERSION,
        "code": code_version(),
        "start": start,
    }
    return header, packed


def _header_with_newcomers(run: Course, header: Mapping[str, Any]) -> dict[str, Any]:
    """What a log says of the run from now on, where it did not know of clients that join."""
    config = run.config.but(rounds=header["config"]["rounds"])
    data = {"data": run.dataset.digest, "source": run.dataset.source, "classes": run.dataset.classes}
    return {**header, "config": config.to_dict(), **data}
