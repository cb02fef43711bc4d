"""How much of a corrected bound is needed: its terms one at a time, on quadratics, whose truth is exact."""
# given.toml places these checks beside statements: "line-N" is the one on line N of the paper's LaTeX source.

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final

from theory.bounds import statement
from theory.findings.finding import Evidence
from theory.notation.formula import names_in
from theory.problems.quadratic import Quadratic
from theory.problems.spectrum import Spectrum

# The one constant that is not 0 where a term stands alone; D = 0 starts at the minimum.
_ALONE: Final[Mapping[str, Mapping[str, float]]] = {
    "start": {"D": 1.0},
    "noise": {"sigma": 1.0},
    "rate": {"D": 1e-3, "sigma": 1.0},
    "dissimilarity": {"sigma_G": 1.0},
    "smoothing": {"mu": 1.0},
}
_FACTOR: Final = 1.1  # by which a term may be off without another share


def needed(name: str, term: str, share: float) -> Evidence:
    """Where a term of a corrected bound stands alone, the truth reaches this share of the bound, and never all of it.

    The share is that found when the bound was proved: a term that is made more than a tenth smaller or larger, by a
    slip or on purpose, has another one.
    """
    corrected = statement(name)
    ratios = {}
    # Quadratics of curvature 1 in a direction or in all of them, at shares of the largest step.
    constants: dict[str, Any] = {"D": 0.0, "sigma": 0.0, "sigma_G": 0.0, "mu": 0.0, **_ALONE[term]}
    mu = constants.pop("mu")
    parts = (0.03, 0.3, 1.0) if any("eta" in names_in(formula) for formula in corrected.terms.values()) else (1.0,)
    for d, P, K, R, m, part in product((1, 10, 1000), (1, 30), (1, 4), (1, 2, 30, 3000), (1, 3), parts):
        if corrected.single_step and K > 1:
            continue
        problem = Quadratic.of(Spectrum.flat(d), **constants)
        setting = problem.setting(m=m, M=4, P=P, K=K, R=R, mu=mu, distribution=corrected.distributions[0], G=0.0)
        setting = replace(setting, eta=part * corrected.step_sizes(setting).largest)
        ratios[setting] = corrected.left.exact(problem, setting).value / math.fsum(corrected.bound(setting))
    worst = max(ratios, key=lambda setting: ratios[setting])
    reached = ratios[worst]
    where = ", ".join(f"{key} = {getattr(worst, key):.4g}" for key in ("d", "P", "K", "R", "m", "eta"))
    says = f"corrected {name}, {term} alone: truth/bound at most {reached:.4g}, at {where}"
    return Evidence("search", reached <= 1 and share / _FACTOR < reached < share * _FACTOR, says, {"ratio": reached})
