"""Histories of an implementation, or of clients that stand for real ones.

With ``Stand`` a replica is a hash of the records that it applied, and what a client measures one of its number, round,
place in the data and model: whatever would give a real replica other bits gives these other ones. With
``Implementation`` these are real, and slower.
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from decomfl_lab.errors import THEIRS, InputError
from decomfl_lab.estimators.differences import central
from decomfl_lab.laws.contract import AnyClient, Case, Implementation
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.register import LawBrokenError
from decomfl_lab.laws.worlds.world import SIMPLEST, Choose, Parts, SmallFederation, Tell, World, case_of
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum


class _Chain(Replica):
    """A replica whose x is a hash of all records that it applied, a byte an element."""

    def _apply_all(self, records: Sequence[RoundRecord]) -> None:
        chain = self.x.numpy().tobytes()
        for n, record in enumerate(records):
            if record.round != self.round + n:
                raise InputError(f"a replica at round {self.round + n} cannot apply the record of round {record.round}")
            chain = hashlib.blake2b(chain + record.scalars.tobytes(), digest_size=16).digest()
            chain = np.frombuffer(chain, np.uint8).astype(np.float32).tobytes()
        self.x = torch.frombuffer(bytearray(chain), dtype=torch.float32)
        self.round += len(records)

    def digest(self) -> str:
        """See ``Replica``: x is all that there is."""
        return hashlib.blake2b(self.x.numpy().data, digest_size=16).hexdigest()


class _Hashing(Client):
    """A client whose scalars are a hash of all that they may depend on."""

    def handle(self, plan: Plan) -> Reply:
        self._catch_up(plan)
        state = f"{self.id} {plan.round} {self.steps_taken} {self.replica.digest()}".encode()
        digest = hashlib.blake2b(state, digest_size=2 * plan.K * plan.P).digest()
        self.steps_taken += plan.K
        return Reply(self.id, plan.round, np.frombuffer(digest, np.uint16).astype(np.float32).reshape(plan.K, plan.P))


class Stand(Implementation):
    """The lab's server, and clients that hash where others rebuild and measure; each message is read once."""

    name = "hashes"

    def __init__(self) -> None:
        self.decode = cache(super().decode)  # type: ignore[method-assign]
        self._first = _Chain(case_of(SIMPLEST).initial(), Momentum(0.5))  # the replica at x_0, which all settings share

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Any:  # noqa: ARG002
        return self._first.clone()

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        """A client that hashes."""
        unused: Any = objective  # a client that hashes evaluates no loss
        return _Hashing(i, self._replica(case), unused, central, case.mu)


def parts_of(implementation: Implementation | None = None) -> Parts:
    """What histories of an implementation share, for None of the lab's with the clients of ``Stand``.

    NotImplementedError if servers or clients are not the lab's.
    """
    implementation = Stand() if implementation is None else fitted(implementation)
    made = implementation.server(case_of(SIMPLEST)), implementation.client(case_of(SIMPLEST), 0)
    if not all(map(isinstance, made, (Server, Client))):
        raise NotImplementedError("sessions are the lab's, of its own server and clients")
    return Parts(implementation)


def broken(parts: Parts, setting: SmallFederation, choose: Choose, tell: Tell = None) -> str:
    """What is wrong with the history of these decisions; empty if nothing is."""
    if tell:
        tell(str(setting))
    try:
        World(parts, setting, choose, tell).play()
    except LawBrokenError as error:
        return str(error)
    except THEIRS as error:  # whatever a faulty part raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""
