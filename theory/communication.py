"""How many scalars are communicated: closed forms for the countings that the paper and its plots use."""

from __future__ import annotations

from decomfl_lab.errors import require_int
from decomfl_lab.wire import (
    HEADER_BYTES,
    PLAN_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    REPLY_HEAD_BYTES,
    SCALAR_BYTES,
    SEED_BYTES,
    VECTOR_HEAD_BYTES,
)

__all__ = [
    "plotted_scalars_decomfl",
    "plotted_scalars_fedavg",
    "table1_scalars_decomfl",
    "table1_scalars_fedavg",
    "wire_bytes_decomfl",
    "wire_bytes_fedavg",
]


def table1_scalars_decomfl(R: int, *, M: int, m: int, K: int, P: int) -> float:
    """Scalars per client after R rounds: R·(2KP + (m/M)·KP).

    The server sends 2MKP a round (a seed and a scalar for every direction, to everyone sooner or later) and
    gets mKP back.

    Source: [DeComFL, Table 1 and the paragraph after it], divided by M.
    """
    require_int("m", m, 1, M)
    return R * K * P * (2.0 + m / M)


def table1_scalars_fedavg(R: int, *, M: int, m: int, d: int, uplink: float = 1.0) -> float:
    """Scalars per client after R rounds: R·(1 + β)·d·(m/M).

    Args:
        R: Rounds.
        M: Clients.
        m: Sampled clients a round.
        d: Parameters.
        uplink: β, what is sent up as a share of d scalars of 32 bits: 1 for FedAvg and FedZO, bits/32 for FedCom,
            2k/d for k values with their indices.

    Source: [DeComFL, Table 1], divided by M.
    """
    require_int("m", m, 1, M)
    return R * (1.0 + uplink) * d * m / M


def plotted_scalars_decomfl(R: int, *, K: int, P: int) -> float:
    """The x-axis of the paper's Figure 2 after R rounds: (R − 1)·K·P.

    The authors' notebook multiplies the 0-based round index by K·P: one direction only, no seeds, no lag.
    """
    return float((R - 1) * K * P)


def plotted_scalars_fedavg(R: int, *, d: int) -> float:
    """The x-axis of the paper's Figure 2 for FedAvg after R rounds: (R − 1)·d, whatever the participation."""
    return float((R - 1) * d)


def wire_bytes_decomfl(R: int, *, M: int, m: int, K: int, P: int) -> float:
    """Expected bytes per client after R rounds, both directions, lag included, with one seed a local step.

    With q = m/M a client takes part in qR rounds in expectation; each costs a plan and a reply. It has been
    sent the records before its last round r: record j is among them if it took part in one of the rounds
    j+1..R-1, so their expected number is Σ_{n=1}^{R-1} (1 − (1 − q)^n) = (R − 1) − (1 − q)(1 − (1 − q)^{R−1})/q.

    Args:
        R: Rounds.
        M: Clients.
        m: Sampled clients a round.
        K: Local steps.
        P: Directions a local step.
    """
    require_int("m", m, 1, M)
    q = m / M
    sent = (R - 1) - (1.0 - q) * (1.0 - (1.0 - q) ** (R - 1)) / q
    plan = HEADER_BYTES + PLAN_HEAD_BYTES + SEED_BYTES * K
    reply = HEADER_BYTES + REPLY_HEAD_BYTES + SCALAR_BYTES * K * P
    record = RECORD_HEAD_BYTES + SEED_BYTES * K + SCALAR_BYTES * K * P
    return q * R * (plan + reply) + sent * record


def wire_bytes_fedavg(R: int, *, M: int, m: int, d: int, itemsize: int = 4) -> float:
    """Expected bytes per client after R rounds of FedAvg: R·(m/M)·2·(header + d·itemsize)."""
    require_int("m", m, 1, M)
    return R * m / M * 2.0 * (HEADER_BYTES + VECTOR_HEAD_BYTES + itemsize * d)
