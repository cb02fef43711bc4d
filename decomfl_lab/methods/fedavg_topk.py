"""FedAvg + Top-k: FedAvg with the largest elements of the update, and their positions, on the way up."""

import math
from dataclasses import dataclass
from typing import ClassVar

from decomfl_lab.federations.averaging import Uplink
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, models_both_ways
from decomfl_lab.methods.fedavg import FedAvg
from decomfl_lab.options import option
from decomfl_lab.protocol.messages import MAGNITUDE, VALUE, Kind, top_k


@dataclass(frozen=True, kw_only=True)
class FedAvgTopK(FedAvg):
    """FedAvg with the largest elements of the update, and their positions, on the way up.

        server:  x_{r+1} = x_r + (1/m) Σ_i top_k(x_{i,r}^{K+1} − x_r), or that weighed by n_i

    Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, without memory.
    """

    name: ClassVar[str] = "fedavg-topk"

    top_k: float = option(0.1, "The share of the elements that is sent up, in (0, 1].", gt=0, le=1)
    top_k_by: str = option(
        MAGNITUDE,
        "What makes an element large: its magnitude; or its value with the sign, which loses what falls, and is here "
        "only to reproduce code that forgets the absolute value.",
        choices=(MAGNITUDE, VALUE),
    )

    def uplink(self, setting: TrainingSetting) -> Uplink:  # noqa: ARG002
        """See ``FedAvg.uplink``: the share of the update that is largest; the rest is forgotten (no error feedback)."""
        return lambda _, r, down, x: top_k(r, x - down, self.top_k, self.top_k_by)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        k = math.ceil(self.top_k * d)
        return models_both_ways(cohort, d, Kind.SPARSE.bytes(k), k, weighting=self.weighting)
