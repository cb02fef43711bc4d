"""A search over parameters for the case in which a ratio is largest."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy import optimize

_POINTS: Final = 12
_HUGE: Final = 1e100  # its square is a number, which the search's spread needs


@dataclass(frozen=True)
class Axis:
    """The range of a parameter in a search."""

    low: float  # least value
    high: float  # largest value
    log: bool = True  # whether it is searched on a logarithmic scale
    whole: bool = False  # whether it takes whole numbers only

    def at(self, share: float) -> float:
        """The value at a share in 0..1 of the range."""
        span = self.high - self.low
        value = self.low * (self.high / self.low) ** share if self.log else self.low + share * span
        return float(round(value)) if self.whole else value


@dataclass(frozen=True)
class Worst:
    """The worst case that a search found."""

    ratio: float  # largest left side as a multiple of the right side; above 1 the inequality fails
    at: Mapping[str, float]  # the parameters there
    tried: int  # number of points tried

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} = {value:.6g}" for name, value in self.at.items())
        return f"left/right at most {self.ratio:.6g} in {self.tried} points, at {numbers}"


def instances(axes: Mapping[str, Axis], effort: int) -> int:
    """How many points a search tries if nothing stops it: its population, of a power of two, in each generation."""
    return (effort + 1) * (1 << (_POINTS * len(axes) - 1).bit_length())


def search(
    ratio: Callable[[Mapping[str, float]], float],
    axes: Mapping[str, Axis],
    *,
    seed: int = 0,
    effort: int = 60,
    watch: Callable[[Worst], bool] | None = None,
) -> Worst:
    """The parameters with the largest ratio left/right, by differential evolution from a fixed seed.

    Args:
        ratio: Ratio of the two sides at these parameters; NaN where they are not admissible.
        axes: Every parameter's name and its range.
        seed: Seed of the search.
        effort: Number of generations; the population has 12 points a parameter, or a few more.
        watch: Function that is told the worst case after each generation, and stops the search by True.
    """
    names = list(axes)
    tried = 0

    def parameters(shares: Sequence[float]) -> dict[str, float]:
        return {name: axes[name].at(float(share)) for name, share in zip(names, shares, strict=True)}

    def loss(shares: Any) -> float:
        nonlocal tried
        tried += 1
        value = ratio(parameters(shares))
        return _HUGE if math.isnan(value) else max(-value, -_HUGE)

    def stops(intermediate_result: Any) -> bool:
        return watch is not None and watch(Worst(-intermediate_result.fun, parameters(intermediate_result.x), tried))

    optimum = optimize.differential_evolution(
        loss,
        optimize.Bounds(np.zeros(len(names)), np.ones(len(names))),
        rng=np.random.default_rng(seed),
        maxiter=effort,
        popsize=_POINTS,
        polish=False,
        tol=0.0,
        init="sobol",
        callback=stops,
    )
    worst = parameters(optimum.x.tolist())
    return Worst(ratio(worst), worst, tried)
