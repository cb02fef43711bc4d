"""Random probe vectors from the lab's noise stream: pure functions of (seed, stage, index), so runs resume exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution, derive_seed
from hessian.operator import Operator

__all__ = ["PROBE_LAWS", "probe", "probe_at", "require_law"]

PROBE_LAWS = (Distribution.RADEMACHER, Distribution.GAUSSIAN)
"""Laws with E zzᵀ = I and independent elements."""


def require_law(law: Distribution) -> None:
    """InputError unless ``law`` is one of ``PROBE_LAWS``."""
    require(law in PROBE_LAWS, "law", f"be one of {', '.join(PROBE_LAWS)}", law)


def probe(operator: Operator, seed: int, stage: int, index: int, law: Distribution = Distribution.RADEMACHER) -> Tensor:
    """Probe number ``index`` of a stage, in the operator's dtype and on its device, shape (d,).

    Args:
        operator: Whose space it is in.
        seed: Of the estimate, 0..2**64-1.
        stage: Keeps the probes of different purposes (start of Lanczos, trace, density ...) independent.
        index: 0, 1, ...
        law: Rademacher or Gaussian.
    """
    z = noise.direction(derive_seed(seed, stage), index, operator.d, distribution=law)
    return torch.from_numpy(z).to(operator.device, operator.dtype)


def probe_at(x: Tensor, seed: int, stage: int, index: int, law: Distribution = Distribution.GAUSSIAN) -> Tensor:
    """The same for whoever has a point x (d,) and no operator; in its dtype, on its device, of any law."""
    z = noise.direction(derive_seed(seed, stage), index, x.numel(), distribution=law)
    return torch.from_numpy(z).to(x)
