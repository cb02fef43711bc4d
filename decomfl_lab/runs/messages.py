"""What a run says: a line that sums it up, what was sent, which models were rebuilt, its curves, its troubles."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.errors import DivergedError, Told, plural
from decomfl_lab.methods.method import Method
from decomfl_lab.runs.folder import METRICS_FILE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

RISEN = 10.0
"""A run whose loss ends above so many times that of its first round is warned of."""

logger = logging.getLogger("decomfl_lab")


@dataclass(frozen=True, repr=False)
class Sent(Told):
    """What a run has sent; ``str`` says it in a line."""

    clients: int  # the number of clients
    rounds: int  # the number of rounds done
    up_bytes: int  # the bytes clients → server, all together
    down_bytes: int  # the bytes server → clients, all together
    model_bytes: int  # the bytes of the model, d numbers of 4 bytes
    # the share of the rounds that a client took part in, mean over all; 0 for one agent that sends nothing
    part: float = 0.0
    by_models: bool = False  # whether the method sends models, so that there is nothing to compare them with

    @property
    def models_bytes(self) -> float:
        """What a client would have got and sent, had the model gone both ways in each round that it took part in."""
        return 2 * self.model_bytes * self.rounds * self.part

    def __str__(self) -> str:
        up, down = (1e-3 * count / self.clients for count in (self.up_bytes, self.down_bytes))
        compared = self.models_bytes and not self.by_models
        instead = f"; the model both ways instead: {1e-3 * self.models_bytes:,.1f} kB" if compared else ""
        return (
            f"wire: {up + down:,.2f} kB a client, {up:,.2f} of them up (mean over the {self.clients:,}), after "
            f"{self.rounds:,} rounds; the model itself has {1e-3 * self.model_bytes:,.1f} kB{instead}"
        )


@dataclass(frozen=True, repr=False)
class Rebuilt(Told):
    """How many clients, brought up to date by the records that they missed, hold the global model; true if all do."""

    clients: int
    equal: int

    def __bool__(self) -> bool:
        return self.equal == self.clients

    def __str__(self) -> str:
        if not self.clients:
            return "rebuilt: no client keeps a model between its rounds"
        equal = f"{self.equal:,} of {self.clients:,} clients"
        return f"rebuilt: {equal}, brought up to date by the records they missed, hold the global model bit for bit"


def diverged(error: DivergedError, done: int, method: Method, out: Path | None) -> DivergedError:
    """The error with the round, what was too large, what to try, and where the rounds before it are."""
    where = "" if out is None else f"; the rounds before are in {out / METRICS_FILE}"
    lr, plain = method.eta(done), method.plain()
    if done == 0 and plain.get("local_steps", 1) == 1 and "mu" in plain and str(error.args[0]).startswith("scalars"):
        blame = f"before any step: a loss is no finite number at x_0 or mu = {plain['mu']:g} from it; try a smaller mu"
        return DivergedError(error.args[0], f"in round 0, {blame}{where}")
    return DivergedError(error.args[0], f"in round {done} {_remedy(method, lr)}{where}")


def warn_if_risen(first: float, last: float, method: Method, lr: float) -> None:
    """Warn where the training loss ended far above that of the first round, and name what to try."""
    if last > RISEN * abs(first):
        logger.warning(
            f"the training loss ended at {last:.3g}, far above the {first:.3g} of the first round, "
            f"{_remedy(method, lr)}"
        )


def _remedy(method: Method, lr: float) -> str:
    """What a run went wrong with, and what to try: the rule that liars pass, a server's own step, else the lr."""
    plain = method.plain()
    if plain.get("attackers", 0) and "aggregation" in plain:
        liars, rule = plural(plain["attackers"], "attacker"), plain["aggregation"]
        return f"with {liars} ({plain['attack']}) and --aggregation {rule}; try another --aggregation (docs/robust.md)"
    if plain.get("server_optimizer", "sgd") != "sgd":
        optimizer, server_lr = plain["server_optimizer"], plain["server_lr"]
        return f"with server_optimizer {optimizer} at --server-lr {server_lr:g}; try --server-lr {server_lr / 10:g}"
    return f"at lr = {lr:g}; try lr = {lr / 10:g}"


def curves(rows: pd.DataFrame, clients: int, title: str) -> Figure:
    """Accuracy, where there is one, and losses over the rounds of a run, with the bytes a client sent and got above."""
    import numpy as np
    from matplotlib.figure import Figure

    has_accuracy = bool(rows.test_accuracy.notna().any())
    figure = Figure(figsize=(9 if has_accuracy else 5, 3.6), dpi=150, layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, 1 + has_accuracy))
    # Bytes a client and round, from which the upper axes are made.
    wire = rows.wire_bytes.max() / clients / max(1, rows["round"].max())
    for own, columns in zip(axes, [["test_accuracy"], ["train_loss", "test_loss"]][1 - has_accuracy :], strict=True):
        for column in columns:
            own.plot(rows["round"], rows[column], marker="o", markersize=3, label=column.replace("_", " "))
        own.set(xlabel="communication round", ylabel=columns[0].split("_")[-1])
        own.grid(alpha=0.3)
        own.legend(frameon=False)
        if wire:
            above = own.secondary_xaxis("top", functions=(lambda r: r * wire / 1e3, lambda b: b * 1e3 / wire))
            above.set_xlabel("kB a client, both ways")
    figure.suptitle(title)
    return figure
