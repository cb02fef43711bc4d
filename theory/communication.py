"""What is communicated: closed forms for the bytes really sent, and the countings of the paper and its plots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sympy as sp

from decomfl_lab.errors import require_int
from decomfl_lab.methods.expected_traffic import ExpectedTraffic as ExpectedTraffic
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.runs.configuration import TrainConfig
from theory.notation.formula import value_of
from theory.notation.symbols import K, M, P, beta, d, epsilon, kappa, m


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table 1; β is FedCom's share of d scalars, ε bounds the average of E‖∇f‖²."""

    uplink: sp.Expr  # scalars that all clients together send in a round
    downlink: sp.Expr  # scalars that the server sends to all clients together in a round
    rounds: sp.Expr  # number of rounds to reach ε, but for a constant
    uplink_complexity: sp.Expr  # the product uplink · rounds as printed
    downlink_complexity: sp.Expr  # the product downlink · rounds as printed


TABLE_1: Final[Mapping[str, Row]] = {
    "FedAvg": Row(m * d, m * d, 1 / (m * K * epsilon**2), d / (K * epsilon**2), d / (K * epsilon**2)),
    "FedZO": Row(m * d, m * d, d / (m * P * K * epsilon**2), d**2 / (P * K * epsilon**2), d**2 / (P * K * epsilon**2)),
    "FedCom": Row(beta * m * d, m * d, 1 / (m * K * epsilon**2), beta * d / (K * epsilon**2), d / (K * epsilon**2)),
    "DeComFL": Row(m * K * P, 2 * M * K * P, d / (m * P * K * epsilon**2), d / epsilon**2, M * d / (m * epsilon**2)),
    "DeComFL, low rank": Row(
        m * P, 2 * M * P, kappa / (m * P * epsilon**2), kappa / epsilon**2, M * kappa / (m * epsilon**2)
    ),
}
"""The rows of the paper's Table 1, by method."""


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


def expected_traffic(config: TrainConfig, d: int) -> ExpectedTraffic:
    """Expected traffic of one client in a whole run, lag included, by the wire format; times M it is the ledger's.

    With q = m/M a client takes part in each round with probability q, independently of the other rounds. The closed
    form is the method's (``Method.traffic``), for any schedule of directions, seeds and rates and d float32 parameters.

    Raises:
        InputError: For pull auto, whose choices follow costs and not chance alone; or if d is below 1.

    Source: [DeComFL, Algorithms 3 and 4, Table 1], with every byte of ``decomfl_lab.protocol.wire``.
    """
    return config.method.traffic(config.cohort, require_int("d", d, 1))


@dataclass(frozen=True)
class Numbers:
    """What DeComFL sends a client and gets from it in a whole run, in expectation, counted as the paper counts."""

    up: float  # scalars client → server
    down: float  # scalars of records server → client
    seeds: float  # seeds server → client: those of its own rounds, of records and, per run, the run's


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
    seeds = seeding.sent(K, P) * (R * q + records) + (ever if seeding.needs_run_seed else 0.0)
    return Numbers(up=R * q * K * P, down=records * K * P, seeds=seeds)
