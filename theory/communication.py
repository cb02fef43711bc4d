"""What is communicated: closed forms for the bytes really sent, and the countings of the paper and its plots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sympy as sp

from decomfl_lab.errors import require, require_int
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import (
    HEADER_BYTES,
    HELD_BYTES,
    INDEX_BYTES,
    PLAN_HEAD_BYTES,
    QUANTIZED_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    REPLY_HEAD_BYTES,
    SCALAR_BYTES,
    SEED_BYTES,
    SPARSE_HEAD_BYTES,
    VECTOR_HEAD_BYTES,
)
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.runs.config import LAGGING, REPLAYING, TrainConfig
from theory.formula import value_of
from theory.symbols import K, M, P, beta, d, epsilon, kappa, m

__all__ = [
    "TABLE_1",
    "Numbers",
    "Row",
    "Traffic",
    "expected_numbers",
    "expected_traffic",
    "plotted_scalars_decomfl",
    "plotted_scalars_fedavg",
    "table1_scalars_decomfl",
    "table1_scalars_fedavg",
    "wire_bytes_decomfl",
    "wire_bytes_fedavg",
]


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table 1; β is FedCom's share of d scalars, ε bounds the average of E‖∇f‖².

    Attributes:
        uplink: Scalars that all clients together send in a round.
        downlink: Scalars that the server sends to all clients together in a round.
        rounds: Number of rounds to reach ε, but for a constant.
        uplink_complexity: The product uplink · rounds as printed.
        downlink_complexity: The product downlink · rounds as printed.
    """

    uplink: sp.Expr
    downlink: sp.Expr
    rounds: sp.Expr
    uplink_complexity: sp.Expr
    downlink_complexity: sp.Expr


TABLE_1: Final[Mapping[str, Row]] = {
    "FedAvg": Row(m * d, m * d, 1 / (m * K * epsilon**2), d / (K * epsilon**2), d / (K * epsilon**2)),
    "FedZO": Row(m * d, m * d, d / (m * P * K * epsilon**2), d**2 / (P * K * epsilon**2), d**2 / (P * K * epsilon**2)),
    "FedCom": Row(beta * m * d, m * d, 1 / (m * K * epsilon**2), beta * d / (K * epsilon**2), d / (K * epsilon**2)),
    "DeComFL": Row(m * K * P, 2 * M * K * P, d / (m * P * K * epsilon**2), d / epsilon**2, M * d / (m * epsilon**2)),
    "DeComFL, low rank": Row(
        m * P, 2 * M * P, kappa / (m * P * epsilon**2), kappa / epsilon**2, M * kappa / (m * epsilon**2)
    ),
}


def _table1_scalars(row: Row, R: int, *, M: int, m: int, **others: float) -> float:
    """Scalars per client after R rounds, both ways."""
    require_int("m", m, 1, M)
    values = {"M": float(M), "m": float(m), **others}
    return R * (value_of(row.uplink, values) + value_of(row.downlink, values)) / M


def table1_scalars_decomfl(R: int, *, M: int, m: int, K: int, P: int) -> float:
    """Scalars per client after R rounds: R·(2KP + (m/M)·KP).

    The server sends 2MKP a round (a seed and a scalar for every direction, to everyone sooner or later) and
    gets mKP back; ``expected_numbers`` has what really travels.

    Source: [DeComFL, Table 1 and the paragraph after it], divided by M.
    """
    return _table1_scalars(TABLE_1["DeComFL"], R, M=M, m=m, K=K, P=P)


def table1_scalars_fedavg(R: int, *, M: int, m: int, d: int, uplink: float = 1.0) -> float:
    """Scalars per client after R rounds: R·(1 + β)·d·(m/M).

    Args:
        R: Number of rounds.
        M: Number of clients.
        m: Number of clients sampled a round.
        d: Number of parameters.
        uplink: β, what is sent up as a share of d scalars of 32 bits: 1 for FedAvg and FedZO, bits/32 for FedCom,
            2k/d for k values with their indices.

    Source: [DeComFL, Table 1], divided by M.
    """
    return _table1_scalars(TABLE_1["FedCom"], R, M=M, m=m, d=d, beta=uplink)


def plotted_scalars_decomfl(R: int, *, K: int, P: int) -> float:
    """The x-axis of the paper's Figure 2 after R rounds: (R − 1)·K·P.

    The authors' notebook multiplies the 0-based round index by K·P: one direction only, no seeds, no lag.
    """
    return float((R - 1) * K * P)


def plotted_scalars_fedavg(R: int, *, d: int) -> float:
    """The x-axis of the paper's Figure 2 for FedAvg after R rounds: (R − 1)·d, whatever the participation."""
    return float((R - 1) * d)


@dataclass(frozen=True)
class Traffic:
    """What one client and the server send each other, in expectation over who is sampled. All clients are alike.

    Attributes:
        up_bytes: Bytes client → server.
        up_scalars: Gradient scalars or model elements client → server.
        down_bytes: Bytes server → client.
        down_scalars: Gradient scalars or model elements server → client.
    """

    up_bytes: float = 0.0
    up_scalars: float = 0.0
    down_bytes: float = 0.0
    down_scalars: float = 0.0

    @property
    def bytes(self) -> float:
        """Both ways."""
        return self.up_bytes + self.down_bytes

    @property
    def scalars(self) -> float:
        """Both ways."""
        return self.up_scalars + self.down_scalars

    def times(self, clients: int) -> Traffic:
        """The traffic of so many clients together."""
        return Traffic(
            clients * self.up_bytes, clients * self.up_scalars, clients * self.down_bytes, clients * self.down_scalars
        )


def expected_traffic(config: TrainConfig, d: int, *, vectors: int = 1) -> Traffic:
    """Expected traffic of one client in a whole run, lag included, by the wire format; times M it is the ledger's.

    With q = m/M a client takes part in each round with probability q, independently of the other rounds.

    Methods that send models: R·q times a model down and an update up. BAFFLE: R·q times a model and a plan down and
    scalars up. DeComFL: R·q times a plan down and scalars up (and what the client holds, if it tracks that itself); the
    run's seed once, with probability 1 − (1 − q)^R, if no record carries seeds; and records. Record j goes to a client
    that takes part in round j + n, n = 1..R−1−j, and was last there in round j or before (or never): with probability
    q(1 − q)^{n−1}. With a history of N records, n ≤ N, and whoever is more than N rounds behind in round j + n > N,
    probability (1 − q)^N, gets the model instead of it. Together, with a = min(N, R − 1 − j),

        P(record j is sent) = 1 − (1 − q)^a − q(1 − q)^N · max(0, a − max(0, N − j)),
        E[models sent] = q(1 − q)^N · max(0, R − 1 − N),

    and without a bound N = ∞, where only the first two terms of the first line are left, a = R − 1 − j.

    Args:
        config: The run. Directions, seeds and rates may follow any schedule.
        d: Number of parameters, kept in float32.
        vectors: 1 and the number of the update rule's state vectors: what a pull of the model sends.

    Raises:
        InputError: For pull auto, whose choices follow costs and not chance alone.

    Source: [DeComFL, Algorithms 3 and 4, Table 1], with every byte of ``decomfl_lab.protocol.wire``.
    """
    require(config.pull == "never", "pull", "be never for a closed form", config.pull)
    require_int("d", d, 1)
    require_int("vectors", vectors, 1)
    if config.method == "mezo":
        return Traffic()
    if config.method in REPLAYING:
        return _scalar_traffic(config, d, vectors)
    updates = {
        "fedcom": (QUANTIZED_HEAD_BYTES + (d if config.quantize_bits > 4 else (d + 1) // 2), d),
        "fedavg-topk": _sparse(math.ceil(config.top_k * d)),
    }
    size, elements = updates.get(config.method, (VECTOR_HEAD_BYTES + SCALAR_BYTES * d, d))
    taking_part = config.rounds * config.sampled / config.clients
    return Traffic(
        taking_part * (HEADER_BYTES + size), taking_part * elements, taking_part * _model(d), taking_part * d
    )


def _model(d: int) -> int:
    return HEADER_BYTES + VECTOR_HEAD_BYTES + SCALAR_BYTES * d


def _sparse(k: int) -> tuple[int, int]:
    return SPARSE_HEAD_BYTES + (INDEX_BYTES + SCALAR_BYTES) * k, k


def _scalar_traffic(config: TrainConfig, d: int, vectors: int) -> Traffic:
    R, K, seeding = config.rounds, config.local_steps, Seeding(config.seeds)
    P = Schedule(config.perturbations, config.perturbation_schedule)
    q = config.sampled / config.clients
    seeds = [SEED_BYTES * seeding.sent(K, P(r)) for r in range(R)]
    scalars = [K * P(r) for r in range(R)]

    up_bytes = q * sum(HEADER_BYTES + REPLY_HEAD_BYTES + SCALAR_BYTES * n for n in scalars)
    down_bytes = q * sum(HEADER_BYTES + PLAN_HEAD_BYTES + size for size in seeds)
    down_scalars = 0.0
    if config.tracking == Tracking.CLIENTS:
        up_bytes += q * R * (HEADER_BYTES + HELD_BYTES)
    if seeding is Seeding.PER_RUN:
        down_bytes += (1 - (1 - q) ** R) * (HEADER_BYTES + SEED_BYTES)

    if config.method in LAGGING:
        N = config.history or R
        for j in range(R):
            a = min(N, R - 1 - j)
            sent = 1 - (1 - q) ** a - q * (1 - q) ** N * max(0, a - max(0, N - j))
            down_bytes += sent * (RECORD_HEAD_BYTES + seeds[j] + SCALAR_BYTES * scalars[j])
            down_scalars += sent * scalars[j]
        models = vectors * q * (1 - q) ** N * max(0, R - 1 - N)
    else:
        models = q * R
    return Traffic(up_bytes, q * sum(scalars), down_bytes + models * _model(d), down_scalars + models * d)


@dataclass(frozen=True)
class Numbers:
    """What DeComFL sends a client and gets from it in a whole run, in expectation, counted as the paper counts.

    Attributes:
        up: Scalars client → server.
        down: Scalars of records server → client.
        seeds: Seeds server → client: those of its own rounds, of records and, per run, the run's.
    """

    up: float
    down: float
    seeds: float


def expected_numbers(R: int, *, M: int, m: int, K: int, P: int, seeding: Seeding = Seeding.PER_DIRECTION) -> Numbers:
    """Expected scalars and seeds of one client after R rounds of DeComFL, lag included; all M together M times that.

    With q = m/M, a client is sampled Rq times. Record j reaches it if it is sampled in any of the R − 1 − j later
    rounds, so it is sent

        Σ_j 1 − (1 − q)^{R−1−j} = R − (1 − (1 − q)^R)/q

    records, R but for the last lag. The paper's 2MKP down a round are M·(KP scalars and KP seeds) of records: what the
    last lag leaves out, and the seeds of the rounds that a client takes part in, q·KP a round, are not in it.

    Source: [DeComFL, Table 1 and the paragraph after it]; the records without a bound on the history.
    """
    require_int("m", m, 1, M)
    for name, count in (("R", R), ("K", K), ("P", P)):
        require_int(name, count, 1)
    q = m / M
    ever = 1 - (1 - q) ** R
    records = R - ever / q
    seeds = seeding.sent(K, P) * (R * q + records) + (ever if seeding is Seeding.PER_RUN else 0.0)
    return Numbers(up=R * q * K * P, down=records * K * P, seeds=seeds)


def wire_bytes_decomfl(R: int, *, M: int, m: int, K: int, P: int) -> float:
    """Expected bytes per client after R rounds of DeComFL, one seed a local step: see ``expected_traffic``."""
    config = TrainConfig(clients=M, sampled=m, rounds=R, local_steps=K, perturbations=P)
    return expected_traffic(config, 1).bytes


def wire_bytes_fedavg(R: int, *, M: int, m: int, d: int) -> float:
    """Expected bytes per client after R rounds of FedAvg: R·(m/M)·2·(header + 4d)."""
    return expected_traffic(TrainConfig(method="fedavg", clients=M, sampled=m, rounds=R), d).bytes
