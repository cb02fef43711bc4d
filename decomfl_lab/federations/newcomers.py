"""Clients that join a saved federation: what it saved, as if they had been there from the start and never sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from decomfl_lab.errors import plural, require
from decomfl_lab.protocol.wire import encode, read
from decomfl_lab.records.record import RoundRecord

if TYPE_CHECKING:
    from decomfl_lab.checkpoint import Saved
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.replicas.replica import Snapshot


def padded(saved: Saved, M: int) -> Saved:
    """What was saved of M clients, or of fewer: the others have taken no step, hold round 0 and were told nothing."""
    tensors, values = saved
    more = M - len(values["steps_taken"])
    counts = [name for name in ("steps_taken", "client_rounds") if name in values]
    grown: dict[str, list[Any]] = {name: [*values[name], *[0] * more] for name in counts}
    if values.get("held"):  # empty where clients track their rounds
        grown["held"] = [*values["held"], *[0] * more]
    if "client_rounds" in values:  # clients elsewhere are listed by their numbers once they are told
        grown["told"] = [*values["told"], *[False] * more]
    return tensors, values | grown


def with_newcomers(
    federation: DeComFLFederation,
    saved: Saved,
    start: Snapshot,
    x0: str | None,
    before: Callable[[int], Sequence[RoundRecord] | None],
) -> Saved:
    """``padded``, with what those that join need: x_0, and the records from round 0 on.

    Where such records are gone, or more than the server may keep, it sends a model in their place, as to any client.

    Args:
        federation: The federation with those that join.
        saved: What it saved without them.
        start: The model that is given as that of x_0.
        x0: The digest of x_0; None where nobody has noted it, and the records say whether ``start`` is right.
        before: It gives the records before a round; None where they are gone and the server has a model.

    Raises:
        InputError: If the records, or the model at x_0, are not to be had.
    """
    import torch

    from decomfl_lab.replicas.replica import Snapshot

    tensors, values = padded(saved, federation.server.M)
    joining = range(len(saved[1]["steps_taken"]), federation.server.M)
    # The round of the first record that was saved; the round of the model that rebuilding begins from.
    first, base, keep = values["first"], values["base"], federation.server.keep
    too_many = keep > 0 and values["round"] > keep
    if not too_many and (earlier := before(first) if first else ()) is not None:
        kept: tuple[RoundRecord, ...] = read(tuple, tensors["records"].numpy().tobytes(), federation.server.run_seed)
        records = (*earlier, *kept)
        # Forgetful clients without a base are sent the model whenever they take part: nothing is moved.
        forgetful = federation.forgetful and federation.base is None
        # Who joins begins at x_0. The saved base may be later, so it is moved back there; that the given model is x_0
        # is shown by its digest, or by the records that lead from it to the base.
        if base and not forgetful:
            rolling = federation.observer.clone()
            rolling.restore(Snapshot(base, tensors["x"], {slot: tensors[f"state.{slot}"] for slot in rolling.state}))
            there = rolling.digest()
            rolling.restore(start)
            if x0 is None:  # the way from x_0 to the saved model is as good a proof
                rolling.catch_up(record for record in records if record.round < base)
            who = plural(len(joining), "client")
            rule = f"have its weights of then (x_0), as {who} more begin there"
            require(rolling.digest() == (there if x0 is None else x0), "model", rule, "other weights")
            tensors = tensors | {"x": start.x, **{f"state.{slot}": own for slot, own in start.state.items()}}
            base = 0
        values = values | {"first": 0, "base": base}
        tensors = tensors | {"records": torch.frombuffer(bytearray(encode(records)), dtype=torch.uint8)}
    for i in joining:
        if federation.clients and federation.clients[i].replica.drifts:
            tensors = tensors | {f"client.{i}.x": start.x}
            values = values | {"taken": {**values["taken"], str(i): []}}
    return tensors, values
