"""The server: plans rounds, averages scalars, keeps the history; it needs no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from decomfl_lab.errors import InputError, require, require_finite_positive, require_int
from decomfl_lab.messages import Plan, Reply
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.records import History, RoundRecord, mean_scalars
from decomfl_lab.replica import Replica, Snapshot
from decomfl_lab.schedules import Schedule

__all__ = ["Server", "sample_clients"]

_SAMPLING = 1
_DIRECTIONS = 2


def sample_clients(seed: int, r: int, M: int, m: int) -> tuple[int, ...]:
    """C_r: m of M clients, uniformly without replacement; a pure function of (seed, r), sorted."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SAMPLING, r)))
    return tuple(sorted(int(i) for i in generator.choice(M, size=m, replace=False)))


@dataclass
class Server:
    """DeComFL's server, sans I/O: ``plan_round`` → replies → ``aggregate``.

    Attributes:
        M: Clients.
        m: Clients sampled a round, 1..M.
        K: Local steps.
        P: Directions a step, a schedule over rounds.
        eta: Learning rate η, a schedule over rounds.
        seed: Everything random derives from it: directions and the sampled clients.
        distribution: Law of the directions.
        replica: The server's own model, or None: the algorithm does not need one.

    Source: [DeComFL, Algorithm 3].
    """

    M: int
    m: int
    K: int
    P: Schedule[int]
    eta: Schedule[float]
    seed: int
    distribution: Distribution = Distribution.GAUSSIAN
    replica: Replica | None = None
    history: History = field(default_factory=History)
    held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_int("clients M", self.M, 1)
        require_int(f"sampled clients m (of M={self.M})", self.m, 1, self.M)
        require_int("local steps K", self.K, 1)
        for value in (self.P.initial, *self.P.changes.values()):
            require_int("perturbations P", value, 1)
        for rate in (self.eta.initial, *self.eta.changes.values()):
            require_finite_positive("learning rate eta", rate)
        require_int("seed", self.seed, 0, 2**64 - 1)
        self.held = self.held or [0] * self.M
        self._planned: dict[int, Plan] = {}

    @property
    def round(self) -> int:
        """r, the round to be planned or under way."""
        return self.history.end

    def plan_round(self, participants: Sequence[int] | None = None) -> dict[int, Plan]:
        """The plans of round r, one a sampled client, in the order of the clients' numbers.

        Args:
            participants: Who takes part; None samples m of M uniformly without replacement.

        Raises:
            InputError: If a participant does not exist or stands twice.
        """
        r = self.round
        if participants is None:
            participants = sample_clients(self.seed, r, self.M, self.m)
        require(len(set(participants)) == len(participants) > 0, "participants", "be distinct", participants)
        for client in participants:
            require_int("participant", client, 0, self.M - 1)
        run_key = derive_seed(self.seed, _DIRECTIONS)
        seeds = tuple(derive_seed(run_key, r, k) for k in range(self.K))
        self._planned = {
            client: Plan(r, self.eta(r), self.P(r), self.distribution, seeds, self.history.since(self.held[client]))
            for client in sorted(participants)
        }
        return dict(self._planned)

    def aggregate(self, replies: Iterable[Reply]) -> RoundRecord:
        """Average the replies of the planned round into its record, store it, and forget what nobody needs.

        A planned client whose reply never comes is left out of the mean and counted as still lagging.

        Raises:
            InputError: If a reply is of another round, of a client not planned, doubled, of another shape,
                or not finite; nothing is stored then.
        """
        by_client: dict[int, Reply] = {}
        for reply in replies:
            self._check(reply)
            require(reply.client not in by_client, "client of a reply", "reply once", reply.client)
            by_client[reply.client] = reply
        require(bool(by_client), f"replies of round {self.round}", "number at least 1", 0)
        clients = sorted(by_client)
        plan = self._planned[clients[0]]
        scalars = mean_scalars([by_client[client].scalars for client in clients])
        record = RoundRecord(plan.round, plan.eta, plan.distribution, plan.seeds, scalars)
        if self.replica is not None:
            self.replica.apply(record)
        self.history.append(record)
        for client in clients:
            self.held[client] = plan.round
        self.history.prune(min(self.held))
        self._planned = {}
        return record

    def _check(self, reply: Reply) -> None:
        plan = self._planned.get(reply.client)
        if plan is None:
            raise InputError(
                f"client of a reply must be one planned for round {self.round} "
                f"({sorted(self._planned)}), got {reply.client}"
            )
        require(
            reply.round == plan.round,
            f"round of client {reply.client}'s reply",
            f"be {plan.round}",
            reply.round,
        )
        require(
            reply.scalars.shape == (plan.K, plan.P) and reply.scalars.dtype == np.float32,
            f"scalars of client {reply.client}",
            f"be float32 of shape (K, P) = {(plan.K, plan.P)}",
            (reply.scalars.dtype, reply.scalars.shape),
        )
        if not np.isfinite(reply.scalars).all():
            raise InputError(
                f"scalars of client {reply.client} in round {plan.round} must be finite, got "
                f"{reply.scalars[~np.isfinite(reply.scalars)][0]} (a smaller learning rate may help)"
            )

    def dense_model(self) -> Snapshot:
        """The server's model for a dense pull; InputError if it keeps none."""
        if self.replica is None:
            raise InputError("the server keeps no model, so there is none to pull")
        return self.replica.snapshot()

    def note_dense_pull(self, client: int) -> None:
        """Remember that ``client`` now holds the model of the present round."""
        require_int("client", client, 0, self.M - 1)
        self.held[client] = self.round
        self.history.prune(min(self.held))
