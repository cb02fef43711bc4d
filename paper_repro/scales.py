"""How large a reproduction is. Only ``full`` has the paper's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FIG2_SCALES", "Fig2Scale"]


@dataclass(frozen=True, kw_only=True)
class Fig2Scale:
    """Sizes of the runs behind Figure 2.

    Attributes:
        M: Clients.
        m: Sampled clients a round (a tenth of M, as in the paper).
        batch_size: B.
        local_rounds: Left panel: rounds for each K.
        perturbation_rounds: Right panel: rounds for every P.
        fedavg_rounds: Rounds of the baseline.
        seeds: Seeds of the left panel in the "as-plotted" reading (the others use the first).
        eta_factor: Factor on the learning rate of DeComFL in the "as-plotted" reading. With batches 64 times
            smaller than the authors' their η (times 1/(1 - β) = 10) diverges within 100 local steps; a smaller
            one does not.
        evaluations: About how many evaluations a run gets.
        test_examples: Held-out images of an evaluation; 0 for all.
    """

    M: int
    m: int
    batch_size: int
    local_rounds: Mapping[int, int]
    perturbation_rounds: int
    fedavg_rounds: int
    seeds: tuple[int, ...]
    eta_factor: float = 1.0
    evaluations: int = 20
    test_examples: int = 0


FIG2_SCALES: dict[str, Fig2Scale] = {
    "smoke": Fig2Scale(
        M=20,
        m=2,
        batch_size=8,
        local_rounds={1: 24, 4: 12, 10: 6},
        perturbation_rounds=8,
        fedavg_rounds=10,
        seeds=(0,),
        eta_factor=0.3,
        evaluations=6,
        test_examples=1000,
    ),
    "default": Fig2Scale(
        M=50,
        m=5,
        batch_size=8,
        local_rounds={1: 120, 4: 64, 10: 32},
        perturbation_rounds=48,
        fedavg_rounds=60,
        seeds=(0, 1, 2),
        eta_factor=0.3,
        test_examples=2000,
    ),
    "full": Fig2Scale(
        M=100,
        m=10,
        batch_size=256,
        local_rounds={1: 2000, 4: 2000, 10: 2000},
        perturbation_rounds=1500,
        fedavg_rounds=1000,
        seeds=(0, 1, 2),
        evaluations=100,
    ),
}
