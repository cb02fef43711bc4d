"""Clients that join a saved federation: what it saved, as if they had been there from the start and never sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from decomfl_lab.errors import plural, require
from decomfl_lab.outside import Counts
from decomfl_lab.protocol.wire import encode, read
from decomfl_lab.records.record import RoundRecord

if TYPE_CHECKING:
    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.outside import Saved
    from decomfl_lab.replicas.replica import Snapshot


def padded(saved: Saved, M: int) -> Saved:
    """What was saved of M clients, or of fewer: the others have taken no step, hold round 0 and were told nothing."""
    tensors, values = saved
    more = M - values.clients
    nothing = [(0, 0, 0, 0)] * more  # is what they were sent
    counts = Counts([*values.counts.up, *nothing], [*values.counts.down, *nothing])
    grown: dict[str, Any] = {"steps_taken": [*values.steps, *[0] * more], "ledger": counts}
    if values.held:  # empty where clients track their rounds
        grown["held"] = [*values.held, *[0] * more]
    if values.client_rounds:  # clients elsewhere are listed by their numbers once they are told
        grown["client_rounds"] = [*values.client_rounds, *[0] * more]
        grown["told"] = [*(values.told or ()), *[False] * more]
    return tensors, replace(values, **grown)


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
    joining = range(saved[1].clients, federation.server.M)
    # The round of the first record that was saved; the round of the model that rebuilding begins from.
    first, base, keep = values.first, values.base, federation.server.keep
    too_many = keep > 0 and values.round > keep
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
        values = replace(values, first=0, base=base)
        tensors = tensors | {"records": torch.frombuffer(bytearray(encode(records)), dtype=torch.uint8)}
    for i in joining:
        if federation.clients and federation.clients[i].replica.drifts:
            tensors = tensors | {f"client.{i}.x": start.x}
            values = replace(values, taken={**values.taken, str(i): []})
    return tensors, values
