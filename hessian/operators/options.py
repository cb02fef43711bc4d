"""Which matrix of which function: the options of ``curvature``, without torch, for Python and every command alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from decomfl_lab.errors import require
from decomfl_lab.options import option, require_options
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hessian.operators.mean_loss import Weights

_HELP = table_beside(__name__, "options.toml")
OPERATORS = ("hessian", "gauss-newton", "fisher", "smoothed")
NORMALISATIONS = ("eval", "batch")
DTYPES = ("float32", "float64")

HOW = "How closely, and by what"  # the group of options that say how much is computed
MODEL = "Model and data"  # the group of options that say of which function H is
OTHERS = "Other matrices, and a ball"  # the group of options that say which matrix H is


@dataclass(frozen=True, kw_only=True)
class CurvatureOptions:
    """Which matrix of a model, a loss and data."""

    operator: str = option("hessian", _HELP["operator"], choices=OPERATORS)
    mu: float | None = option(None, _HELP["mu"], OTHERS, gt=0)
    weight_decay: float = option(0.0, _HELP["weight_decay"], MODEL, symbol="λ", ge=0)
    trust: bool = option(False, _HELP["trust"], MODEL)
    parameters: str | Iterable[Any] | Callable[[str], bool] | None = option(None, _HELP["parameters"], MODEL)
    normalisation: str | None = option(None, _HELP["normalisation"], MODEL, choices=NORMALISATIONS)
    dtype: str | None = option(None, _HELP["dtype"].format(dtypes=", ".join(DTYPES)), HOW, choices=DTYPES)
    chunk: int | None = option(None, _HELP["chunk"], HOW, ge=1)
    compute: str = option("float32", _HELP["compute"], HOW, choices=("float32", "tf32", "bfloat16"))

    def __post_init__(self) -> None:
        require_options(self)
        if isinstance(self.parameters, Iterator):  # as module.parameters(), for whoever reads it more than once
            object.__setattr__(self, "parameters", list(self.parameters))
        named = isinstance(self.parameters, str) and "" in self.parameters.split(",")
        require(not named, "parameters", "be names joined by commas", self.parameters)


class CurvatureKeywords(TypedDict, total=False):
    """What ``curvature`` takes beside model, loss and data, and so do all functions that are about its matrix.

    ``CurvatureOptions`` says what the first nine are, and ``curvature`` what the others are.
    """

    operator: str
    mu: float | None
    weight_decay: float
    trust: bool
    parameters: str | Iterable[str | Tensor] | Callable[[str], bool] | None
    normalisation: str | None
    dtype: torch.dtype | str | None
    chunk: int | None
    compute: str
    weights: Weights | None
    redraw: int
    whiten: Tensor | None
    d: int | None
