"""The folder of a run: its files, what is saved in them, and how a run is found there again, gone on with or refused.

A checkpoint has everything. Where it is gone, a log of scalars has it too (``repeat``): rounds are not measured again.
What is said of a folder alone needs no torch.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decomfl_lab.errors import InputError, brief, require
from decomfl_lab.noise import STREAM_VERSION
from decomfl_lab.plugins import OWN, is_own
from decomfl_lab.progress import Progress
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.runs.configuration import PARTS, TrainConfig, config_like, read_config
from decomfl_lab.storage.checkpoint_file import read_checkpoint, read_values, write_checkpoint
from decomfl_lab.storage.files import LOCK_FILE, is_held, read_file, require_plain, write_atomically
from decomfl_lab.storage.outside import Header, Provenance, Saved, SavedRun, read_as, require_rows
from decomfl_lab.storage.provenance import PROVENANCE_FILE, code_version, provenance, read_provenance
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.datasets.images import Dataset
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.runs.run import Run

METRICS_FILE = "metrics.csv"
CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.toml"
LOG_FILE = "run.dcl"
PROBED = 1e-3
"""By how much a loss may differ, relative to it, where it is computed by other kernels or on another device."""

logger = logging.getLogger("decomfl_lab")

Row = Mapping[str, float]

_WRITTEN = table_beside(__name__, "columns.toml")
METRICS = tuple(_WRITTEN["every"])
"""The columns that every run's table has."""

COLUMNS: Mapping[str, str] = _WRITTEN["every"] | _WRITTEN["some"]
"""What the columns of metrics.csv mean; "whitened_" before a name says that it is of DHD, with scaled directions."""


def further(config: TrainConfig) -> list[str]:
    """The columns of what a run measures on the held-out examples beside accuracy and loss."""
    return ["calibrated_accuracy"] * bool(config.task) + [f"test_{name}" for name in config.measures]


@dataclass(frozen=True)
class FoundRun:
    """What a folder says of its run."""

    folder: Path  # the folder
    # finished; interrupted, to be resumed by the same command; running, in a process that holds the folder; damaged,
    # where a file is not as it was written; diverged, where rows are later than the checkpoint; or "no checkpoint",
    # where a run diverged before it had one, or it was not kept (with its log the run can go on)
    state: str
    config: Mapping[str, Any]  # the configuration, as plain values; empty where nothing says it
    # the evaluations, in order: those of the checkpoint, where there is one, and those of metrics.csv after it
    rows: Sequence[Mapping[str, float]]
    round: int  # the number of rounds that can be resumed from, or of the last row
    d: int | None = None  # the number of parameters; None without a checkpoint
    trouble: str = ""  # what is damaged; empty if nothing
    # where metrics.csv says other numbers than the checkpoint, which has the rows; or why nobody knows
    remark: str = ""

    @property
    def last(self) -> Mapping[str, float]:
        """The last row; empty if there is none."""
        return self.rows[-1] if self.rows else {}


def found_runs(folders: Sequence[Path]) -> list[FoundRun]:
    """The runs in these folders and below, in the order of their names; InputError if one of them is no folder."""
    for folder in folders:
        require(folder.is_dir(), "folder", "be a folder that exists", str(folder))
    below: dict[Path, Path] = {}
    for folder in folders:
        reports: set[Path] = set()
        for place, names, files in os.walk(folder):
            path = Path(place)
            holds = {CONFIG_FILE, METRICS_FILE} <= {*files} or CHECKPOINT_FILE in files
            locked = not holds and LOCK_FILE in files and is_held(path)
            if locked and names:  # a report that is being made, and holds those of its folders that are not of runs
                reports.add(path)
            # A run that has just begun has a lock alone.
            elif holds or (locked and path.parent not in reports):
                names.clear()
                below[path.resolve()] = path
            names[:] = [name for name in names if not name.startswith(".")]
    return [looked_at(path) for path in sorted(below.values())]


def looked_at(folder: Path) -> FoundRun:
    """What the folder says of its run; damage is said, and not raised."""
    running, config = is_held(folder), {}
    try:
        config = read_config(folder / CONFIG_FILE, plain=True) if (folder / CONFIG_FILE).exists() else {}
        if not (folder / CHECKPOINT_FILE).exists():
            rows = read_rows(folder / METRICS_FILE)
            done = int(rows[-1]["round"]) if rows else 0
            remark = "" if table_is_sound(folder) else f"{METRICS_FILE} was changed, and nothing else has its numbers"
            return FoundRun(folder, "running" if running else "no checkpoint", config, rows, done, remark=remark)
        shapes, values = read_values(folder / CHECKPOINT_FILE)
        saved = read_as(SavedRun, values, f"checkpoint {folder / CHECKPOINT_FILE}")
        config, done, (d,) = saved.config, saved.federation.round, shapes["x"]
        table, remark = compared(folder, saved.rows)
        later = [row for row in table if row["round"] > done]
        state = "diverged" if later else "finished" if done >= config["rounds"] else "interrupted"
        return FoundRun(folder, "running" if running else state, config, [*saved.rows, *later], done, d, remark=remark)
    except (InputError, LookupError, TypeError, ValueError) as error:
        trouble = str(error) if isinstance(error, InputError) else f"the files of {folder} must be those of a run"
        return FoundRun(folder, "damaged", config, [], 0, trouble=trouble)


def open_log(path: Path, *, end: int | None = None, write: bool = True) -> RunLog:
    """``RunLog.open`` of a run's log; InputError also where its header is not that of a run."""
    log = RunLog.open(path, end=end, write=write)
    try:
        read_as(Header, log.header, f"header of the log {path}")
    except InputError:
        log.close()
        raise
    return log


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv, NaN where a cell is empty; none without the file.

    InputError if it cannot be read, or the rows cannot be evaluations of one run.
    """
    if not path.exists():
        return []
    content = read_file(path.name, path)
    try:
        cells = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
        numbers = [[int(cell) if cell.isdecimal() else float(cell or math.nan) for cell in row] for row in cells[1:]]
        rows = [dict(zip(cells[0], row, strict=True)) for row in numbers]
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} must be a table of numbers, as a run writes it ({error})") from None
    known = not cells or "round" in cells[0]
    require(known, str(path), "be a table of numbers, as a run writes it", cells[:1])
    require_rows(rows, str(path))
    return rows


def table_is_sound(folder: Path) -> bool:
    """Whether there is a metrics.csv, as the run left it: by the digest in provenance.json, if a version wrote one."""
    try:
        read_rows(folder / METRICS_FILE)
        digest = json.loads(require_plain(folder / PROVENANCE_FILE).read_text(encoding="utf-8")).get("metrics_sha256")
        return digest in (None, hashlib.sha256((folder / METRICS_FILE).read_bytes()).hexdigest())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def compared(folder: Path, rows: Sequence[Row], *, rel_tol: float = 0.0) -> tuple[Sequence[Row], str]:
    """The rows of metrics.csv, and in words where they are not those that the run has; empty where they are.

    Numbers may be ``rel_tol`` apart, relative to them.
    """
    try:
        table = read_rows(folder / METRICS_FILE)
    except InputError as error:
        return (), str(error)
    by_round = {row["round"]: row for row in rows}
    others: list[str] = []
    for row in table:
        for name, right in by_round.get(row["round"], {}).items():
            cell = row.get(name, right)
            # Accuracies near 0 may differ by an example or two where ``rel_tol`` is not 0.
            alike = math.isclose(cell, right, rel_tol=rel_tol, abs_tol=5 * rel_tol)
            if not alike and not (math.isnan(cell) and math.isnan(right)):
                others.append(f"{name} = {cell:.6g} for {right:.6g} in round {row['round']}")
    more = f" and {len(others) - 1} more" * (len(others) > 1)
    return table, f"{METRICS_FILE} says {others[0]}{more}" if others else ""


def joining(config: TrainConfig, dataset: Dataset, folder: Path, *, follows: bool = False) -> TrainConfig:
    """``config`` as it goes on in the folder: clients that the run there does not have join in its next round.

    Clients that joined there before are noted where ``config`` does not say so. Everything else that differs is left
    for ``differing`` to find. The folder may be empty or not be there. A run that ``follows`` goes on after its log, as
    a server does, and not after its checkpoint. InputError if more clients than before are to have parts of the same
    examples.
    """
    # The configuration of the run in the folder, as far as it is known, and the round in which it goes on.
    earlier: list[tuple[TrainConfig, int]] = []
    checkpoint, path = folder / CHECKPOINT_FILE, folder / LOG_FILE
    if checkpoint.exists():
        saved = read_as(SavedRun, read_values(checkpoint)[1], f"checkpoint {checkpoint}")
        earlier.append((config_like(config, saved.config, f"run {folder}"), saved.federation.round))
    rests_on_log = follows or not earlier
    if rests_on_log and path.exists():
        with open_log(path, write=False) as log:
            earlier.append((config_like(config, log.header["config"], f"run {folder}"), len(log)))
    if not earlier:
        return config
    # Who joined stands in the log first, and the rounds of a log are those of its checkpoint and perhaps some more.
    before, r = max(earlier, key=lambda run: (run[0].clients, run[1]))
    if config.joined not in ({}, before.joined):
        return config
    more = config.clients - before.clients
    if more <= 0:
        return config.but(joined=before.joined) if more == 0 else config
    require(r > 0, f"clients M of the run in {folder}", f"be {before.clients} until a round is done", config.clients)
    dealt = "as its examples are dealt by split, and one more would change everybody's part"
    rule = f"be {before.clients}, {dealt} (clients with data of their own, a list, can join)"
    require(dataset.parts is not None, f"clients M of the run in {folder}", rule, config.clients)
    return config.but(joined={**before.joined, r: before.joined.get(r, 0) + more})


def differing(then: TrainConfig, now: TrainConfig, done: int = 0) -> list[str]:
    """The names of the options in which the run ``now`` differs from the one it goes on from, but for joining clients.

    In none of the rounds ``done`` of the earlier one may another client have been there.
    """
    sizes = {now.present(r) for r in (0, *now.joined)}
    later = [r for r in now.joined if now.present(r) > then.clients]
    if then.clients in sizes and min(later, default=done) >= done:
        now = now.of_first(then.clients)
    a, b = then.to_dict(), now.to_dict()
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def data_then(then: TrainConfig, now: TrainConfig, dataset: Dataset) -> str:
    """The digest of the examples of those clients that a run had then; empty where that cannot be told."""
    if then.clients >= now.clients or dataset.parts is None or then.method.alone:
        return dataset.digest
    from decomfl_lab.datasets.user_data import first_clients

    first = first_clients(dataset, then.clients)
    return "" if first is None else first.digest


def save_run(run: Run, folder: Path) -> None:
    """Write all that the run goes on from, and what people read of it; each file whole or not at all."""
    tensors, values = run.federation.save()
    by_records = run.federation.by_records
    if by_records is not None and by_records.log is not None:
        by_records.log.sync()  # no checkpoint is ahead of its log
    saved = SavedRun(
        federation=values,
        rows=run.rows,
        losses=run.losses,
        seconds=run.seconds,
        first=run.first,
        constants=run.constants(),
        probe=run.probe(),
        config=run.config.to_dict(),
        data=run.dataset.digest,
        code=code_version(),
        **run.hands,
    )
    write_checkpoint(folder / CHECKPOINT_FILE, tensors, saved)
    publish(run, folder)
    run.saved = run.round


def publish(run: Run, folder: Path) -> None:
    """Write what people read of the run: configuration, provenance, table."""
    write_atomically(folder / CONFIG_FILE, run.config.to_toml())
    table = run.metrics.to_csv(index=False)
    facts = provenance(run.dataset, **run.hands) | {"metrics_sha256": hashlib.sha256(table.encode()).hexdigest()}
    write_atomically(folder / PROVENANCE_FILE, json.dumps(facts, indent=1, ensure_ascii=False))
    write_atomically(folder / METRICS_FILE, table)


def read_saved(
    folder: Path, understand: Callable[[Mapping[str, Any], str], TrainConfig]
) -> tuple[dict[str, Tensor], SavedRun]:
    """The checkpoint in a folder; InputError if there is none, or its configuration is not that of config.toml.

    ``understand`` gives the configuration of plain values and their origin; it says which code these may name.
    """
    file, written = folder / CHECKPOINT_FILE, folder / CONFIG_FILE
    log = "; the call of lab.train, or the command, that made it goes on from its log" * (folder / LOG_FILE).exists()
    require(file.exists(), "folder", f"be one in which a run was saved{log}", str(folder))
    tensors, values = read_checkpoint(file)
    saved = read_as(SavedRun, values, f"checkpoint {file}")
    ours = understand(saved.config, f"run {folder}")
    if written.exists():
        theirs = config_like(ours, read_config(written, plain=True), str(written))
        a, b = theirs.to_dict(), ours.to_dict()
        others = [name for name in differing(theirs, ours) if name != "rounds"]
        if others:
            found = ", ".join(f"{name} = {a.get(name)!r} for {b.get(name)!r}" for name in others)
            raise InputError(
                f"{written} must be as the run left it (only rounds may differ), got {found}: put that back, or remove "
                "the file, which the checkpoint does not need; another run needs another folder"
            )
    return tensors, saved


class NotGivenError(InputError):
    """What the run's user brought is not given again."""

    def __init__(self, lacking: str, call: str) -> None:
        super().__init__(f"{lacking} must be given again, as {call}: the run trained its user's own, got None")
        self.lacking = lacking  # what is not given
        self.call = call  # the call that gives it, in Python


def require_own(config: TrainConfig, call: str, **given: Any) -> None:
    """NotGivenError that shows the call to write where what is given lacks something that the run's user brought.

    Args:
        config: The run.
        call: The call up to the arguments in question, as ``lab.load('runs/a'``.
        given: The arguments in question, of model, loss, clients, metrics and ``PARTS``; None for what is not given.
    """
    kept = {"model": config.model, "loss": config.loss, "clients": config.data}
    kept["metrics"] = next((target for target in config.measures.values() if target.startswith(f"{OWN} ")), "")
    kept |= {name: str(value) for name, value in config.method.plain().items() if name in PARTS}
    wanted = [name for name in kept if name in given and kept[name].split(" ")[0] == OWN]
    if lacking := [name for name in wanted if given[name] is None]:
        again = "".join(f", {name}={name}" for name in wanted) + ", test=test" * ("clients" in wanted)
        raise NotGivenError(" and ".join(lacking), f"{call}{again})")


def resume_run(run: Run, folder: Path, *, any_code: bool) -> None:
    """Be at the round of the folder's checkpoint; InputError if it is damaged, or of another run, model or loss."""
    tensors, saved = read_saved(folder, partial(config_like, run.config))
    done = saved.federation.round
    require_same(run, saved.config, saved.data, folder, done)
    _take_over(run, folder, saved, done, any_code=any_code)
    d_then, d = tensors["x"].numel(), run.federation.x.numel()
    require(d_then == d, "model", f"have d = {d_then}, as that of the run in {folder}", d)
    where, steps = f"in the checkpoint of {folder}", saved.federation.steps
    by_records = run.federation.by_records
    # Tensors are as those that the run has under these names, and hold numbers.
    slots = {} if by_records is None else by_records.observer.state
    ours = {"x": run.federation.x} | {f"state.{slot}": vector for slot, vector in slots.items()}
    ours |= {name: run.federation.x for name in tensors if re.fullmatch(r"client\.\d+\.x", name)}
    for name, like in ours.items():
        shape = tuple(like.shape)
        saved_form = tuple(tensors[name].shape), tensors[name].dtype
        require(saved_form == (shape, like.dtype), f"{name} {where}", f"be {like.dtype} of shape {shape}", saved_form)
    for name, tensor in tensors.items():
        require(not tensor.isnan().any(), f"{name} {where}", "be of numbers", "NaN")
    if by_records is not None:
        most = done * run.config.method.sizes.get("K", 1)
        require(max(steps) <= most, f"steps_taken {where}", f"be at most {most}, after {done} rounds", steps)
    if not run.config.method.drifts:
        drift = saved.federation.drift
        require(drift is None, f"drift {where}", "not be there without revert sync", drift)
    if wrong := compared(folder, saved.rows)[1]:
        logger.warning("%s: %s; it is written anew from the checkpoint", folder, wrong)
    constants = saved.constants or run.constants()  # older checkpoints have none
    rule = f"have the frozen parameters, buffers and padding rows of the run in {folder}"
    require(constants == run.constants(), "model", rule, f"others ({run.constants()} for {constants})")
    probe = saved.probe
    state: Saved = tensors, saved.federation
    if saved.federation.clients < run.config.clients and by_records is not None and not by_records.follows:
        # Those who join need x_0 and the records from there; elsewhere they are sent a model, or the records of the log
        # that is gone on with.
        path, x0 = folder / LOG_FILE, None
        if run.x0 is None:
            require(run.round == 0, "run", f"be at round 0 to take clients more than {folder} has", run.round)
            run.x0 = by_records.observer.snapshot()

        def before(r: int) -> tuple[RoundRecord, ...] | None:
            """The records before round r; None where they are gone and the server keeps a model."""
            if not path.exists():
                rule = f"be there, or the server keep a model: clients that join need the records before round {r}"
                require(by_records.server.replica is not None, f"log {path}", rule, "none")
                return None
            with open_log(path, write=False) as log:
                require(len(log) >= r, f"log {path}", f"have the rounds before {r}", len(log))
                return log.records(0, r)

        if path.exists():
            with open_log(path, end=0, write=False) as log:
                require_same(run, log.header["config"], log.header["data"], path, done)
                x0 = log.header["x0"]
        state = by_records.with_newcomers(state, run.x0, x0, before)
    run.federation.load(state)
    run.rows[:], run.losses[:], run.seconds = saved.rows, saved.losses, saved.seconds
    run.first = saved.first
    # The loss of the same examples at the loaded x: it can be asked only now that the run is there.
    if probe is not None and (loss := run.probe()) is not None:
        same = math.isclose(probe, loss, rel_tol=PROBED, abs_tol=1e-6)
        require(same, "model and loss", f"give the loss {probe:.6g} that they gave in {folder}", loss)


def _take_over(run: Run, folder: Path, facts: SavedRun | Provenance, done: int, *, any_code: bool) -> None:
    """Have the hands of the run in the folder, at round ``done``; InputError if it may not go on here."""
    run.resolution.over = done > 0  # the first rounds have been looked at then
    for name, here in run.hands.items():
        earlier = getattr(facts, name) or [facts.code] * (name == "codes")
        run.hands[name] = list(dict.fromkeys([*earlier, *here]))
    if facts.code != code_version() and not any_code:
        rule = f"out must hold a run of this code ({code_version()}), got one of {facts.code}"
        raise InputError(f"{rule}; lab.load({str(folder)!r}).more(10, any_code=True) goes on with it, in Python")
    least = f"be at least the {done} of the run in {folder}"
    require(run.config.rounds >= done, "rounds", least, run.config.rounds)


def require_same(run: Run, saved: Mapping[str, Any], data: str, folder: Path, done: int) -> None:
    """InputError that names what differs where a saved run is not this one, in more than its length.

    Clients may have joined too, after the rounds that are done.
    """
    earlier = config_like(run.config, saved, "the saved run").but(rounds=run.config.rounds)
    others = differing(earlier, run.config, done)
    if data != data_then(earlier, run.config, run.dataset):
        others.append("the examples, or their order" if run.config.data == OWN else "the examples")
    if others:
        what = f"hold the same run (only rounds may differ), got {folder}, which differs in {', '.join(others)}"
        join = "; clients more join by lab.load(folder, ..., clients=...)"
        hint = join * (run.config.clients > earlier.clients and run.config.joined == earlier.joined)
        if earlier.joined != run.config.joined and earlier.joined:
            came = ",".join(f"{r}={number}" for r, number in earlier.joined.items())
            hint = f"; its {earlier.clients} clients came by joined={dict(earlier.joined)} (--joined {came})"
        raise InputError(f"out must be empty or {what}{hint}")


def repeat(run: Run, folder: Path, on_round: Callable[[Progress], None] | None) -> None:
    """Be at the last evaluation in the folder, whose checkpoint is gone, by its log.

    The model is evaluated anew on its way. Nothing but the table has train_loss, the seconds and what was measured of
    the Hessian: they are taken from there if its digest is right, and are not known otherwise. The rounds after the
    table's last evaluation are computed again, as train_loss is the mean of all losses between two of them. Any version
    of the code may go on, as it is compared with the digests that it has the bits of then.
    """
    federation, path = run.federation.by_records, folder / LOG_FILE
    assert federation is not None
    with open_log(path, write=False) as log:
        require_same(run, log.header["config"], log.header["data"], folder, len(log))
        facts = read_provenance(folder) if (folder / PROVENANCE_FILE).exists() else {}
        hands = read_as(Provenance, {"code": log.header.get("code", "unknown")} | facts, str(folder))
        _take_over(run, folder, hands, len(log), any_code=True)
        x0 = federation.observer.digest()
        _require_frame(run, federation, log)
        require(log.header["x0"] == x0, f"x_0 of {path}", f"have the digest {x0}", log.header["x0"])
        sound = table_is_sound(folder)
        table = {row["round"]: row for row in read_rows(folder / METRICS_FILE)} if sound else {}
        ends = (r for r in (table if sound else range(len(log) + 1)) if run.config.evaluates(int(r)))
        end = int(max((r for r in ends if r <= len(log)), default=0))
        if not end:
            run.resolution.over = False  # all rounds are played again
            return
        logger.info(f"no {folder / CHECKPOINT_FILE}: rounds up to {end} are those of {path}, and not measured again")
        if run.config.task:
            run.evaluate()
        for entry in log.entries(0, end):
            federation.repeat(entry)
            digest = federation.observer.digest() if entry.digest else entry.digest
            what = f"model after round {entry.record.round} of {path}"
            require(digest == entry.digest, what, f"have the digest {entry.digest}", digest)
            if run.config.evaluates(run.round):
                run.evaluate()
                # What only the table has; it must count the same messages.
                row, written = run.rows[-1], table.get(run.round, {})
                for name in ("wire_bytes", "up_bytes", "gradient_scalars", "model_pulls"):
                    same = written.get(name, row[name]) == row[name]
                    messages = f"{name} of round {row['round']} in {folder / METRICS_FILE}"
                    require(same, messages, f"be {row[name]}, as in {folder / LOG_FILE}", written.get(name))
                unknown = {"train_loss": math.nan, "seconds": math.nan}
                kept = {name: value for name, value in written.items() if name in unknown or name not in row}
                row.update(unknown | kept)
            if on_round is not None:
                accuracy = run.rows[-1]["test_accuracy"] if run.rows else math.nan
                on_round(Progress(run.round, run.config.rounds, math.nan, accuracy, run.wire_scalars))
    run.seconds = run.rows[-1]["seconds"] if sound else 0.0
    # The mean of the first rounds, where the first one has no row; never the loss of one that is played later.
    run.first = run.rows[bool(run.config.task)]["train_loss"]
    if not sound:
        state = "is not as the run left it, and" if (folder / METRICS_FILE).exists() else "is not there, and"
        what = f"{METRICS_FILE} {state} is made anew from the log"
        logger.warning("%s: %s; train_loss and seconds, which nothing else has, are not known", folder, what)
    elif wrong := compared(folder, run.rows, rel_tol=PROBED)[1]:
        logger.warning("%s: the model was evaluated anew, and %s", folder, wrong)


def begin(run: Run, folder: Path) -> None:
    """Take a folder that holds no run; InputError where files that are no run's would be replaced; others are told of.

    There is a table from now on. A run that is killed before its first checkpoint plays the rounds again that the table
    lacks, as the log has no losses.
    """
    if (path := folder / CONFIG_FILE).exists():
        config_like(run.config, read_config(path, plain=True), str(path))
    read_rows(folder / METRICS_FILE)
    if run.federation.by_records is not None and (path := folder / LOG_FILE).exists():  # it would be begun anew
        with open_log(path, write=False) as log:
            require_same(run, log.header["config"], log.header["data"], path, len(log))
    if (folder / PROVENANCE_FILE).exists():
        read_provenance(folder)
    ours = {CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE, PROVENANCE_FILE}
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and path.name not in ours)
    if others:
        logger.warning("%s has other things in it, which are left alone: %s", folder, brief(", ".join(others)))
    if run.federation.by_records is None or not run.federation.by_records.follows:
        publish(run, folder)  # who follows a log plays no round again, and may have a table


@contextmanager
def remembered(run: Run) -> Iterator[None]:
    """Keep the log of a run without a folder inside, from round 0 on, for the case that it is saved at last."""
    federation = run.federation.by_records  # None where models travel
    # A remote federation has its folder, and a run that is begun already without a log has lost its first rounds.
    if federation is None or federation.remote or (run.log is None and run.round):
        yield
        return
    if run.log is None:
        with suppress(InputError):  # what has no name in a file is not saved at last either
            run.log = RunLog.create(None, *_identity(run, federation))
    federation.log_to(run.log)
    try:
        yield
    finally:
        federation.log_to(None)


def write_log(run: Run, path: Path) -> None:
    """Write the log of the run's rounds to ``path``, from memory or from the run's own folder.

    Nothing is written where there is no log, it has other rounds than the run, or ``path`` is where it is already.
    """
    own_path = run.folder / LOG_FILE if run.folder is not None else None
    if run.log is None and own_path is not None and own_path.exists() and realpath(own_path) != realpath(path):
        with open_log(own_path, end=run.round, write=False) as log:
            if len(log) == run.round:
                write_atomically(path, log.content())
    elif run.log is not None and len(run.log) == run.round:
        write_atomically(path, run.log.content())


@contextmanager
def logged(run: Run, out: Path) -> Iterator[None]:
    """Write the folder's log inside, where records say all; later rounds than the present are cut from it."""
    federation, path = run.federation.by_records, out / LOG_FILE
    if run.round and not path.exists():
        write_log(run, path)
    if federation is None:
        yield
    elif run.round and not path.exists() and not federation.follows:
        logger.info(f"no {path}: it would have to begin at round 0, so the run goes on without one")
        yield
    else:
        goes_on = bool(run.round) or (federation.follows and path.exists())
        end = None if federation.follows else run.round
        with open_log(path, end=end) if goes_on else RunLog.create(path, *_identity(run, federation)) as log:
            require_same(run, log.header["config"], log.header["data"], path, len(log))
            _require_frame(run, federation, log)
            if log.header["config"].get("clients", run.config.clients) < run.config.clients:
                config = run.config.but(rounds=log.header["config"]["rounds"])
                data = {"data": run.dataset.digest, "source": run.dataset.source, "classes": run.dataset.classes}
                log.rewrite(path, {**log.header, "config": config.to_dict(), **data})
            if len(log) < run.round:
                remedy = "" if federation.follows else ", or remove it to go on without one"
                raise InputError(
                    f"log {path} must have the {run.round} rounds of the run, got {len(log)}: put a copy of it "
                    f"back{remedy}"
                )
            digest = log.entry(run.round - 1).digest if run.round else None
            if digest is not None:
                present, what = federation.observer.digest(), f"model after round {run.round - 1}"
                require(present == digest, what, f"have the digest {digest}, as in {log.name}", present)
            federation.log_to(log)
            try:
                yield
            finally:
                federation.log_to(None)


def _identity(run: Run, federation: DeComFLFederation) -> tuple[dict[str, Any], bytes]:
    """What the log says of a run at round 0: enough to have its model again without the data; perhaps x_0 too."""
    from decomfl_lab.replicas.start import said

    config = run.config
    drawn = config.tune == "lora" if config.task else not (config.model == OWN or is_own(config.model))
    draws = config.draws if drawn else ""
    start, packed = said(
        run.module, run.layout, federation.observer, seed=config.seed, draws=draws, in_file=config.log_start
    )
    header = {
        "config": run.config.to_dict(),
        "data": run.dataset.digest,
        "source": run.dataset.source,
        "classes": run.dataset.classes,
        "x0": federation.observer.digest(),
        "code": code_version(),
        "start": start,
    }
    header |= _frame(run, federation)
    read_as(Header, header, "header of the log")  # nothing is written that could not be read
    return header, packed


def _require_frame(run: Run, federation: DeComFLFederation, log: RunLog) -> None:
    """InputError that names what the log says of the run, and is not so."""
    for name, value in _frame(run, federation).items():
        require(log.header.get(name) == value, f"{name} of {log.name}", f"be {value}", log.header.get(name))


def _frame(run: Run, federation: DeComFLFederation) -> dict[str, Any]:
    """What the log says of the run that no round changes, and nobody who joins."""
    from decomfl_lab.objectives.trees import tensors

    inputs = next(tensors(run.dataset.train_images))
    return {
        "shape": list(inputs.shape[1:]),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "d": federation.x.numel(),
        "run_seed": federation.server.run_seed,
        "stream": STREAM_VERSION,
    }
