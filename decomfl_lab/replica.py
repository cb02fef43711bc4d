"""A replica: parameters and optimizer state that follow the records, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.records import RoundRecord
from decomfl_lab.rules import Step, UpdateRule

__all__ = ["Layout", "Replica", "Snapshot", "apply_record_", "apply_step_"]

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Where each trainable tensor of a module lies in the flat vector x (parameters in the module's order).

    Attributes:
        names: Parameter names; tied weights once.
        shapes: Their shapes.
        dtype: The one dtype of all, float32 or float64.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of the module's trainable parameters; InputError if there are none or dtypes differ."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        require(bool(named), "module", "have trainable parameters", type(module).__name__)
        dtypes = {p.dtype for _, p in named}
        require(
            len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64},
            "dtype of the parameters",
            "be float32 for all or float64 for all",
            sorted(map(str, dtypes)),
        )
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named), dtypes.pop())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(shape.numel() for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of trainable parameters."""
        return sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one vector of shape (d,)."""
        return torch.cat([module.get_parameter(name).detach().reshape(-1) for name in self.names])

    def bind(self, module: nn.Module, x: Tensor) -> None:
        """Make the module's parameters views of x: what is written to x is the module's from now on."""
        if module.get_parameter(self.names[0]).data_ptr() == x.data_ptr():
            return  # views of x already: a view keeps its memory, so no other vector can have this address
        for name, shape, part in zip(self.names, self.shapes, x.split(self.sizes), strict=True):
            module.get_parameter(name).data = part.view(shape)


def apply_step_(x: Sequence[Floats], state: Mapping[str, Sequence[Floats]], step: Step, rule: UpdateRule) -> None:
    """One local step in place on the consecutive pieces of x: the whole, or one a tensor, with the same bits."""
    d = sum(piece.size for piece in x)
    first = 0
    with np.errstate(over="ignore", invalid="ignore"):  # divergence shows in the scalars, which are checked
        for n, piece in enumerate(x):
            rule.apply_(piece, {slot: state[slot][n] for slot in rule.slots}, step, first=first, d=d)
            first += piece.size


def apply_record_(
    x: Sequence[Floats], state: Mapping[str, Sequence[Floats]], record: RoundRecord, rule: UpdateRule
) -> None:
    """x_{r+1} from x_r in place: the K steps of ``record``.

        x ← rule(x, g_r^k, z_r^k),    k = 1..K

    Args:
        x: The consecutive pieces of the parameter vector.
        state: For each slot of the rule, pieces of the same sizes.
        record: Round r.
        rule: The update rule.

    Source: [DeComFL, eq. (reconstruct)].
    """
    for seed, scalars in zip(record.seeds, record.scalars, strict=True):
        apply_step_(x, state, Step(seed, scalars, record.eta, record.distribution), rule)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a replica: the round it is at, x (d,) and the state vectors."""

    round: int
    x: NDArray[np.generic]
    state: dict[str, NDArray[np.generic]]


class Replica:
    """x and optimizer state after the rounds 0..round-1.

    Attributes:
        x: Parameters, flat tensor of shape (d,).
        state: {slot: tensor of shape (d,)}, 0 at the start.
        round: Number of records applied, so x is x_round.
        rule: The update rule.
    """

    def __init__(self, x: Tensor, rule: UpdateRule, *, sizes: Sequence[int] | None = None) -> None:
        """Copy ``x``; ``sizes`` cuts the vector into the pieces of per-tensor application (default: whole)."""
        require(x.ndim == 1 and x.numel() > 0, "x", "be a non-empty vector", tuple(x.shape))
        self.x = x.detach().clone().contiguous()
        self.rule = rule
        self.state = {slot: torch.zeros_like(self.x) for slot in rule.slots}
        self.round = 0
        self.sizes = tuple(sizes) if sizes is not None else (self.d,)
        require(sum(self.sizes) == self.d, "sizes", f"add up to d={self.d}", self.sizes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.x.numel()

    def _pieces(self, vector: Tensor) -> list[Floats]:
        return [piece.numpy() for piece in vector.split(self.sizes)]

    def _state_pieces(self) -> dict[str, list[Floats]]:
        return {slot: self._pieces(vector) for slot, vector in self.state.items()}

    def step_(self, step: Step) -> None:
        """Apply one local step (not a whole round: ``round`` stays)."""
        apply_step_(self._pieces(self.x), self._state_pieces(), step, self.rule)

    def apply(self, record: RoundRecord) -> None:
        """Apply the record of round ``self.round``; InputError if it is of another round."""
        if record.round != self.round:
            raise InputError(f"a replica at round {self.round} cannot apply the record of round {record.round}")
        apply_record_(self._pieces(self.x), self._state_pieces(), record, self.rule)
        self.round += 1

    def catch_up(self, records: Iterable[RoundRecord]) -> int:
        """Apply all records of rounds ≥ ``round`` in order; returns how many. Older ones are known already."""
        before = self.round
        for record in records:
            if record.round >= self.round:
                self.apply(record)
        return self.round - before

    def snapshot(self) -> Snapshot:
        """A copy that ``restore`` brings back bit for bit."""
        state = {slot: vector.numpy().copy() for slot, vector in self.state.items()}
        return Snapshot(self.round, self.x.numpy().copy(), state)

    def restore(self, snapshot: Snapshot) -> None:
        """Write a snapshot back: parameters, optimizer state and round (revert, or a dense model pull)."""
        require(
            snapshot.x.shape == (self.d,) and snapshot.x.dtype == self.x.numpy().dtype,
            "snapshot",
            f"be of d={self.d} elements of {self.x.dtype}",
            (snapshot.x.shape, snapshot.x.dtype),
        )
        require(
            set(snapshot.state) == set(self.state),
            "state of the snapshot",
            f"be {set(self.state)}",
            snapshot.state,
        )
        self.x.numpy()[:] = snapshot.x
        for slot, vector in snapshot.state.items():
            self.state[slot].numpy()[:] = vector
        self.round = snapshot.round

    def clone(self) -> Replica:
        """An independent replica with the same bits."""
        other = Replica(self.x, self.rule, sizes=self.sizes)
        other.restore(self.snapshot())
        return other

    def digest(self) -> str:
        """BLAKE2b-128 over the bytes of x and of each slot in the rule's order, as hex."""
        h = hashlib.blake2b(digest_size=16)
        h.update(self.x.numpy().tobytes())
        for slot in self.rule.slots:
            h.update(self.state[slot].numpy().tobytes())
        return h.hexdigest()
