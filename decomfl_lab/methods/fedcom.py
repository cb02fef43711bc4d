"""FedCom: FedAvg with the update quantised on the way up."""

from dataclasses import dataclass
from typing import ClassVar

from decomfl_lab.federations.averaging import Floats, Uplink
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, models_both_ways
from decomfl_lab.methods.fedavg import FedAvg
from decomfl_lab.options import option
from decomfl_lab.protocol.messages import Kind, Quantized, quantize

_ROUNDING = 8


@dataclass(frozen=True, kw_only=True)
class FedCom(FedAvg):
    """FedAvg with the update quantised on the way up.

        server:  x_{r+1} = x_r + (1/m) Σ_i Q(x_{i,r}^{K+1} − x_r),   E[Q(v)] = v, or that weighed by n_i

    Source: Haddadpour et al., "Federated learning with compression", AISTATS 2021, FedCOM.
    """

    name: ClassVar[str] = "fedcom"

    quantize_bits: int = option(8, "The bits an element of the uplink takes, 2 to 8.", ge=2, le=8)

    def uplink(self, setting: TrainingSetting) -> Uplink:
        """See ``FedAvg.uplink``: the update, quantised without bias; of 4 bits and less two elements share a byte."""

        def send(client: int, r: int, down: Floats, x: Floats) -> Quantized:
            return quantize(r, x - down, self.quantize_bits, (setting.seed, _ROUNDING, client, r))

        return send

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``: an element takes a byte for 5 bits and more, half a byte for less."""
        size = d if self.quantize_bits > 4 else (d + 1) // 2
        return models_both_ways(cohort, d, Kind.QUANTIZED.bytes(size), weighting=self.weighting)
