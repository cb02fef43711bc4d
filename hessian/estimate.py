"""A number with its error bar."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
from scipy import stats

from decomfl_lab.errors import require
from decomfl_lab.storage.json_values import plain

NOT_IN_JSON: Final = {"json": False}


def require_confidence(confidence: float) -> float:
    """Return ``confidence`` if it is in (0, 1), else raise InputError."""
    require(0.0 < confidence < 1.0, "confidence", "be between 0 and 1, e.g. 0.95", confidence)
    return float(confidence)


def to_its_width(value: float, low: float, high: float) -> tuple[str, str, str]:
    """A value and the ends of its interval, to two digits of the half-width, and to six of the largest at most."""
    largest = max(abs(end) for end in (value, low, high) if math.isfinite(end))
    half, finest = (high - low) / 2, 5 - _decade(largest)
    places = max(0, min(1 - _decade(half), finest) if math.isfinite(half) and half > 0 else finest)
    return f"{value:.{places}f}", f"{low:.{places}f}", f"{high:.{places}f}"


def _decade(value: float) -> int:
    """The power of ten of a number's first digit."""
    return math.floor(math.log10(value)) if value > 0 else 0


class Jsonable:
    """A dataclass that can be written as JSON, but for the fields with ``NOT_IN_JSON`` for their metadata."""

    def to_json(self) -> dict[str, Any]:
        """Every field, ready for ``json.dumps``; numbers that are not finite become None."""
        result: Any = self  # a dataclass, as every class that derives from this one
        left_out = {each.name: None for each in fields(result) if each.metadata == NOT_IN_JSON}
        values = asdict(replace(result, **left_out))
        return {name: plain(value) for name, value in values.items() if name not in left_out}


@dataclass(frozen=True)
class Estimate:
    """The mean of independent samples, with its standard error."""

    value: float  # the estimate
    stderr: float  # its standard error; 0 where the value is exact, NaN where one sample tells nothing of it
    samples: int  # the number of samples; 0 where the value is exact

    @classmethod
    def of(cls, samples: Sequence[float], offset: float = 0.0) -> Self:
        """Offset + mean of ``samples``, standard error s/√n."""
        x = np.asarray(samples, dtype=np.float64)
        require(x.size > 0, "samples", "hold at least one number", x.size)
        stderr = float(x.std(ddof=1) / math.sqrt(x.size)) if x.size > 1 else math.nan
        return cls(offset + float(x.mean()), stderr, x.size)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Student's t interval with samples - 1 degrees of freedom."""
        require_confidence(confidence)
        if self.samples == 0:
            return self.value, self.value
        if self.samples < 2:
            return -math.inf, math.inf
        half = float(stats.t.ppf(0.5 + confidence / 2, self.samples - 1)) * self.stderr
        return self.value - half, self.value + half
