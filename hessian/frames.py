"""Results as data frames, the way figures want them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessian.density import SpectralDensity
from hessian.kappa import EffectiveRank

__all__ = ["density_frame", "history_frame", "ritz_frame"]

_POINTS = 1500


def density_frame(density: SpectralDensity, confidence: float = 0.95) -> pd.DataFrame:
    """The density with its band: columns value (λ), density, low and high, finer around 0 where the mass is."""
    reach = 5 * density.bandwidth
    whole = np.linspace(density.lambda_min - reach, density.lambda_max + reach, _POINTS)
    grid = np.unique(np.concatenate([whole, np.linspace(-2 * reach, 2 * reach, _POINTS // 3)]))
    mean, low, high = density.curve(grid, confidence=confidence)
    return pd.DataFrame({"value": grid, "density": mean, "low": low, "high": high})


def ritz_frame(result: EffectiveRank) -> pd.DataFrame:
    """Columns value and residual: an eigenvalue of H lies within the residual of each Ritz value."""
    return pd.DataFrame({"value": result.ritz_values, "residual": result.ritz_residuals})


def history_frame(result: EffectiveRank) -> pd.DataFrame:
    """Columns products, lambda_max, kappa, low and high, after each product; from the first Ritz value on."""
    columns = ["products", "lambda_max", "kappa", "low", "high"]
    return pd.DataFrame(result.history, columns=columns).dropna(subset=["lambda_max", "kappa"])
