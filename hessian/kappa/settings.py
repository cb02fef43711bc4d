"""What decides an estimate of κ, without torch: for Python and for the command alike."""

import math
import re
from dataclasses import dataclass
from typing import Any

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.options import option, require_options
from decomfl_lab.storage.tables import table_beside
from hessian.operators.options import HOW
from hessian.parts import PARTS

_HELP = table_beside(__name__, "settings.toml")
SCOUTS = 1  # probes that choose the number of steps: the fewer, the cheaper, and two are no better
FINEST = 1e-12  # the least ``rtol``: numbers of 64 bits are no finer
_SPANS = {"s": 1.0, "min": 60.0, "h": 3600.0}
COARSEST = 1e3  # the largest: who asks for less asks for nothing


@dataclass(frozen=True)
class Settings:
    """The arguments that decide the result; ``trace`` is tr(H) where it is known."""

    rtol: float = option(0.05, _HELP["rtol"], ge=FINEST, le=COARSEST)
    confidence: float = option(0.95, _HELP["confidence"], HOW, gt=0, lt=1)
    max_products: int = option(200, _HELP["max_products"], HOW)
    products: int | None = option(None, _HELP["products"], HOW, ge=SCOUTS + 4)
    seed: int = option(0, _HELP["seed"], ge=0, le=2**64 - 1)
    trace: float | None = None
    max_basis: int | None = option(None, _HELP["max_basis"], HOW, ge=4)
    part: str = option("signed", _HELP["part"], choices=tuple(PARTS))

    def __post_init__(self) -> None:
        require_options(self)
        finite = self.trace is None or math.isfinite(self.trace)
        require(finite, "trace", "be a finite number where it is known", self.trace)
        if self.products is None:
            require_int("max_products", self.max_products, SCOUTS + 4)

    @property
    def identity(self) -> dict[str, Any]:
        """What a run has to share with the one that it goes on from. The others say how far it goes."""
        part = {} if self.part == "signed" else {"part": self.part}  # of which older files say nothing
        return {"seed": self.seed, "trace": self.trace, "max_basis": self.max_basis, **part}

    @property
    def limit(self) -> int:
        """Products at most."""
        return self.max_products if self.products is None else self.products

    @property
    def steps(self) -> int:
        """Lanczos steps at most: with probes to come two thirds of the products."""
        return math.ceil(2 * self.limit / 3) if self.trace is None else self.limit

    @property
    def basis(self) -> int:
        """Lanczos vectors at most."""
        return self.steps if self.max_basis is None else min(self.steps, self.max_basis)

    @property
    def tail(self) -> float:
        """The probability that the confidence leaves on either side."""
        return (1 - self.confidence) / 2

    @property
    def normal(self) -> float:
        """The two-sided quantile of the confidence for many samples."""
        from scipy.special import ndtri

        return float(ndtri(0.5 + self.confidence / 2))


def span_words(seconds: float) -> str:
    """A time: 45 s, 12 min, 3.2 h."""
    unit = next((unit for unit in ("s", "min") if seconds < 90 * _SPANS[unit]), "h")
    return f"{seconds / _SPANS[unit]:.2g} {unit}"


def span(text: str) -> float:
    """The seconds of 90s, 30min or 1.5h; InputError, which names the option --within, for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text)
    if found is None or not float(found[1]):
        raise InputError(f"within must be a time above 0 as 90s, 30min or 1.5h, got {text!r}")
    return float(found[1]) * _SPANS[found[2]]
