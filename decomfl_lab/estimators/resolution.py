"""Whether differences of losses are more than the rounding of a loss: a run says so once where they are not."""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import RoundingWarning
from decomfl_lab.estimators.differences import Estimator, ScalarEstimate

ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-12}
"""A unit of rounding of a loss, beside the loss, by the numbers that it is computed in.

In float32 differences of losses of this lab's engines erred by 0.03 to 1.2 of these units (median of three models, and
of μ from 1e-8 to 1e-5). In bfloat16 logits are widened before the loss, which is a mean of many: 0.4 to 1.5 units.
"""
LEAST = 4.0
"""The median difference that is enough, in units of rounding; of a smaller one a third and more can be rounding."""
ENOUGH = 20
"""The scalars to be seen before anything is said."""
AIM = 100.0
"""The difference that another μ is recommended for."""


class Resolution:
    """It sees the scalars of a run's first rounds, of all clients, until it is sure whether they are rounding."""

    def __init__(self, numbers: str) -> None:
        """A watch over losses that are computed in these ``numbers``, a key of ``ROUNDING``."""
        self.numbers = numbers
        self.over = False  # whether it has made up its mind, and looks at nothing any more
        self._mu = math.nan
        self._units: list[NDArray[np.float32]] = []  # the differences of each local step, in units of rounding
        self._losses: list[float] = []

    def see(self, estimator: Estimator, mu: float, estimates: Sequence[ScalarEstimate]) -> None:
        """Note what a client has measured: it is on the host."""
        if self.over or estimator.wants_slopes:
            return
        places = [c for _, c in estimator.points(1, mu)]
        distance = max(places) - min(places)  # in z, of the points whose losses are compared: 2μ or μ
        for estimate in estimates:
            if not math.isfinite(estimate.loss):
                continue
            g = np.asarray(estimate.g if estimate.signed is None else estimate.signed, np.float64)
            differences = np.abs(g.reshape(-1)) * distance
            unit = ROUNDING[self.numbers] * abs(estimate.loss)
            # A loss of 0 has no unit: what differs from it at all is no rounding.
            units = np.divide(differences, unit, out=np.where(differences > 0, np.inf, 0.0), where=unit > 0)
            self._units.append(units.astype(np.float32))
            self._losses.append(abs(estimate.loss))
            self._mu = mu

    def tell(self) -> None:
        """After a round: once enough scalars were seen, warn if they are rounding, and look no further."""
        if self.over or sum(map(len, self._units)) < ENOUGH:
            return
        units, loss = np.concatenate(self._units), float(np.median(self._losses))
        self.over = True
        self._units.clear()
        mu, seen, size = self._mu, len(units), float(np.median(units))
        if size >= LEAST:
            return
        whose = f"a loss of {loss:.3g} in {self.numbers.replace('bfloat16', '16 bits')}"
        wide = " or a model in float64" if self.numbers == "float32" else ""
        # Below one unit the differences say nothing of the slope, so that no better mu follows from them.
        better = max(float(f"{mu * AIM / max(size, 1):.0e}"), 0.0 if size >= 1 else 1e-3)
        share = "a good part of every scalar" if size >= 1 else "most of every scalar"
        finding = (
            f"mu = {mu:g} is too small for {whose}: its differences, of which scalars are made, are {size:.2g} units "
            f"of its rounding (median of the first {seen}), so that {share} is rounding;"
        )
        if not units.any():
            finding = (
                f"all {seen} scalars of the first rounds are 0, and nothing is learnt: at mu = {mu:g} {whose} is the "
                "same at both ends of every difference; unless it does not depend on the model at all,"
            )
        warnings.warn(f"{finding} try mu = {better:g}{wide}", RoundingWarning, stacklevel=2)
