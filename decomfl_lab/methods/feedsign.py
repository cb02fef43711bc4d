"""FeedSign: a bit a direction up, a bit down; the majority's sign is the step."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decomfl_lab.estimators.differences import ESTIMATORS, Estimator
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.options import option
from decomfl_lab.protocol.aggregation import Majority
from decomfl_lab.replicas.rules import Sgd


@dataclass(frozen=True, kw_only=True)
class FeedSign(DeComFL):
    """A bit up, missed bits down: clients vote for or against a direction.

        client:  v_{i,r,p}^k = 1 if f_i(x + μ z_{r,p}^k) − f_i(x − μ z_{r,p}^k) ≥ 0, else −1
        server:  v_{r,p}^k = 1 if Σ_i v_{i,r,p}^k ≥ 0, else −1
        all:     x_{r+1} = x_r − (η/P) Σ_{k,p} v_{r,p}^k z_{r,p}^k,   z regenerated from the run's seed

    Of K local steps a client takes its own before it votes on the next. The vote's size says nothing of the slope's, so
    that η is a length: a step along one Gaussian direction is η√d long. While fewer than half of the clients lie, a
    sign on which the honest ones agree is the step's. A tie is 1: as z and −z are as likely, such a step is random.

    K·P signs take ⌈K·P/8⌉ bytes. Headers take more: a reply has 24 bytes beside the signs, a plan 35 and each record in
    it 19. With one vote a round and one missed record that is 25 bytes up and 55 down, where DeComFL has 28 and 58;
    with a thousand votes 149 and 179, where it has 4,024 and 4,054.

    Source: [FeedSign], arXiv 2501.17610, with K local steps, P directions and lagging clients as in DeComFL.
    """

    name: ClassVar[str] = "feedsign"
    dtype: ClassVar[type[np.float32] | type[np.int8]] = np.int8

    perturbations: int = option(1, "The number P of directions a local step, and of bits that a client sends for it.")
    seeds: str = option("per-run", "How many seeds travel, as of decomfl; per-run: each client is told one, once.")
    rule: ClassVar[Sgd] = Sgd()  # type: ignore[misc]
    aggregation: ClassVar[Majority] = Majority()  # type: ignore[misc,assignment]
    weighting: ClassVar[str] = "clients"  # type: ignore[misc]  # a vote is a client's, and has no weight
    log_kappa: ClassVar[bool] = False  # type: ignore[misc]

    def measured_by(self) -> Estimator:
        """The signs of the differences."""
        return ESTIMATORS[f"{self.estimator}-sign"]
