"""Clients that join a saved run: which configuration goes on from it, and from which round they are there."""

from pathlib import Path

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.datasets.user_data import first_clients
from decomfl_lab.errors import require
from decomfl_lab.runs.configuration import TrainConfig, config_like
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE, open_log, read_saved_values


def joining(config: TrainConfig, dataset: Dataset, folder: Path, *, follows: bool = False) -> TrainConfig:
    """``config`` as it goes on in the folder: clients that the run there does not have join in its next round.

    Clients that joined there before are noted where ``config`` does not say so. Everything else that differs is left
    for ``differing`` to find.

    Args:
        config: The run with all its clients.
        dataset: Their data.
        folder: The folder, which may be empty or not be there.
        follows: Whether the run goes on after its log, as a server does, and not after its checkpoint.

    Raises:
        InputError: If more clients than before are to have parts of the same examples.
    """
    # The configuration of the run in the folder, as far as it is known, and the round in which it goes on.
    found: list[tuple[TrainConfig, int]] = []
    checkpoint, path = folder / CHECKPOINT_FILE, folder / LOG_FILE
    if checkpoint.exists():
        _, saved = read_saved_values(checkpoint)
        found.append((config_like(config, saved["config"], f"run {folder}"), saved["federation"]["round"]))
    rests_on_log = follows or not found
    if rests_on_log and path.exists():
        with open_log(path, write=False) as log:
            found.append((config_like(config, log.header["config"], f"run {folder}"), len(log)))
    if not found:
        return config
    # Who joined stands in the log first, and the rounds of a log are those of its checkpoint and perhaps some more.
    then, r = max(found, key=lambda each: (each[0].clients, each[1]))
    if config.joined not in ({}, then.joined):
        return config
    more = config.clients - then.clients
    if more <= 0:
        return config.but(joined=then.joined) if more == 0 else config
    require(r > 0, f"clients M of the run in {folder}", f"be {then.clients} until a round is done", config.clients)
    dealt = "as its examples are dealt by split, and one more would change everybody's part"
    rule = f"be {then.clients}, {dealt} (clients with data of their own, a list, can join)"
    require(dataset.parts is not None, f"clients M of the run in {folder}", rule, config.clients)
    return config.but(joined={**then.joined, r: then.joined.get(r, 0) + more})


def differing(then: TrainConfig, now: TrainConfig, done: int = 0) -> list[str]:
    """The names of the options in which a run differs from one that it goes on from, but for clients that join.

    Args:
        then: The earlier run.
        now: The run that goes on.
        done: The rounds of the earlier one, in none of which another client may have been there.
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
    first = first_clients(dataset, then.clients)
    return "" if first is None else first.digest
