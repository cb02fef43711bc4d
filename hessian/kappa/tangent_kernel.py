"""``hessian.tangent_kernel``: the effective rank r of a network's tangent kernel K = JJᵀ."""

from typing import Any

from torch import Tensor

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.result import EffectiveRank
from hessian.operators.selection import Source


def half_square(outputs: Tensor, _: Tensor) -> Tensor:
    """½ Σ_v f_v², the mean over the examples: its Gauss-Newton matrix is JᵀJ/N, whatever the targets are."""
    return 0.5 * outputs.square().sum() / len(outputs)


def tangent_kernel(model: Source, data: Data, **options: Any) -> EffectiveRank:
    """The effective rank r = tr K/‖K‖ of the tangent kernel K = JJᵀ of all outputs, with a confidence interval.

    K has a row for each example and class. JᵀJ (d, d) has the same eigenvalues above 0 and is N times the Gauss-Newton
    matrix of ½ Σ_v f_v², the mean over N examples: κ of that matrix, which is printed, is r, and its trace and norm are
    those of K/N. A product with it is one with J and one with Jᵀ; neither J nor K is ever there.

        r = hessian.tangent_kernel(model, (images, labels), rtol=0.05)
        r.kappa                          # 7.9
        theory.KERNEL_NORM               # what P directions make of the kernel, by r

    Args:
        model: The torch module.
        data: Its data, as ``curvature`` takes them; the labels do not matter.
        options: Those of ``effective_rank`` but ``operator``, ``loss`` and ``part``.

    Raises:
        InputError: See ``effective_rank``; if ``operator``, ``loss`` or ``part`` is given.

    Source: docs/two-theories.md.
    """
    for name in ("operator", "loss", "part"):
        if name in options:
            raise InputError(f"{name} must stay unset: a tangent kernel has its own, got {options[name]!r}")
    return effective_rank(model, half_square, data, operator="gauss-newton", **options)
