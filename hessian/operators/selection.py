"""``hessian.curvature``: the matrix that is asked for, of a model, a loss and data, or of another library."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError, known_options, require
from decomfl_lab.layout import MODULE
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.function import enabled
from hessian.operators.curvature import FisherOperator, GaussNewtonOperator, HessianOperator
from hessian.operators.matrices import as_operator, dtype_of
from hessian.operators.mean_loss import MeanLoss, Weights
from hessian.operators.operator import Operator
from hessian.operators.options import CurvatureKeywords, CurvatureOptions
from hessian.operators.transforms.coarse import CoarseOperator
from hessian.operators.transforms.smoothing import SmoothedOperator
from hessian.operators.transforms.whitening import WHITENED, WhitenedObjective, WhitenedOperator

Source = Any  # what has a matrix: a torch module, a ``MeanLoss``, an ``Operator``, or what ``as_operator`` takes

_KINDS = {"hessian": HessianOperator, "gauss-newton": GaussNewtonOperator, "fisher": FisherOperator}
_MU = 1e-3  # the μ of the smoothed operator unless told otherwise
# The options that say which matrix of a function; the others say which function.
_OF_MATRICES = ("operator", "mu", "compute")


@known_options
def curvature(
    model: Source, loss: LossFunction | None = None, data: Data | None = None, **options: Unpack[CurvatureKeywords]
) -> Operator:
    """The matrix H of a model, a loss and data, by its products; or of what another library made.

    Args:
        model: The module that has H; a ``MeanLoss``, which is loss and data too; or H itself: an operator, a matrix of
            torch, numpy or scipy, a ``LinearOperator``, an operator of curvlinops, or a function of a vector with
            ``d`` (``as_operator``).
        loss: The loss(outputs, targets) of a module, the mean over the examples of a batch, or its loss(model, batch),
            if the first parameter is called ``model``; None for the module's own loss, and with anything but a module.
        data: The data of a module: batches (inputs, targets) in a list or a DataLoader, a Dataset, or a pair of
            tensors or arrays; None with anything else. H is then a matrix of the mean loss over these data in the
            module's trainable parameters (``MeanLoss`` says what it asks for).
        options: Which matrix, of which parameters, in which dtype: the fields of ``CurvatureOptions``. And:

            weights (float sequence or function): Of a module's data: see ``MeanLoss``.
            redraw (int): Of a module's data: see ``MeanLoss``.
            whiten (tensor): The vector s (d,) by which a method scales its directions, u = s ⊙ z: H is then DHD,
            D = diag(s).
            d (int): The dimension, with a function of a vector alone, whose ``dtype`` is float32 unless it is given.
            trust (bool): Of what another library made: whether it is not tried.

    Raises:
        InputError: If an argument breaks a rule, or model, loss and data are no such function of the parameters.
    """
    asked: dict[str, Any] = dict(options)
    weights, whiten, d, redraw = (asked.pop(name, None) for name in ("weights", "whiten", "d", "redraw"))
    if asked.get("dtype") is not None:
        asked["dtype"] = str(dtype_of(asked["dtype"])).removeprefix("torch.")
    chosen = CurvatureOptions(**asked)
    if isinstance(model, nn.Module):
        require(d is None, "d", "stay unset with a module, which has it", d)
        if data is None:
            raise InputError("data must be given with a module, got None")
        f = mean_loss_of(model, loss, data, chosen, weights, redraw=1 if redraw is None else redraw)
        return matrix_of(f, chosen, whiten=whiten)
    require(not hasattr(model, "fit"), "model", MODULE, model)
    require(loss is None and data is None, "loss and data", "be None with an operator, which has them", "something")
    given = {"weights": weights, "d": d, "redraw": redraw} | asked
    if isinstance(model, MeanLoss):
        _require_unset(given, _OF_MATRICES, "a MeanLoss")
        return matrix_of(model, chosen, whiten=whiten)
    _require_unset(given, ("d", "dtype", "trust"), "an operator")
    with enabled():
        operator = as_operator(model, d, dtype=chosen.dtype, trust=chosen.trust)
    return operator if whiten is None else WhitenedOperator(operator, whiten)


def mean_loss_of(
    module: nn.Module,
    loss: LossFunction | None,
    data: Data,
    asked: CurvatureOptions,
    weights: Weights | None = None,
    redraw: int = 1,
) -> MeanLoss:
    """f, whose curvature is asked for."""
    chosen = asked.parameters
    return MeanLoss(
        module,
        loss,
        data,
        weights=weights,
        redraw=redraw,
        weight_decay=asked.weight_decay,
        parameters=chosen.split(",") if isinstance(chosen, str) else chosen,
        normalisation=asked.normalisation,
        dtype=None if asked.dtype is None else dtype_of(asked.dtype),
        chunk=asked.chunk,
        trust=asked.trust,
    )


def matrix_of(
    objective: MeanLoss, asked: CurvatureOptions, x: Tensor | None = None, *, whiten: Tensor | None = None
) -> Operator:
    """H of f at x, by default where the module is; DHD with ``whiten``, D = diag(s)."""

    def matrix(f: MeanLoss) -> Operator:
        operator = _KINDS[asked.operator](f, x)
        return operator if whiten is None else WhitenedOperator(operator, whiten)

    if asked.operator != "smoothed" and asked.compute == "float32":
        return matrix(objective)
    if asked.compute != "float32":
        rule = "be float32 with a model in float64, and with the smoothed operator; tf32 takes a GPU"
        fits = asked.operator != "smoothed" and objective.dtype == torch.float32
        require(fits and (asked.compute != "tf32" or objective.device.type == "cuda"), "compute", rule, asked.compute)
        coarse = copy.copy(objective)
        coarse.compute = asked.compute
        return CoarseOperator(matrix(coarse), matrix(objective), asked.compute)
    x = objective.x if x is None else x
    mu = _MU if asked.mu is None else asked.mu
    if whiten is None:
        return SmoothedOperator(objective, x, mu)
    f = WhitenedObjective(objective, x, whiten)  # which is smoothed along scaled directions
    smoothed = SmoothedOperator(f, f.y, mu)
    smoothed.name = WHITENED + smoothed.name
    return smoothed


def _require_unset(given: Mapping[str, Any], but: tuple[str, ...], where: str) -> None:
    """InputError if an option is given that is a module's alone."""
    defaults = {each.name: each.default for each in dataclasses.fields(CurvatureOptions)}
    names = [name for name, value in given.items() if name not in but and value != defaults.get(name)]
    require(not names, " and ".join(names), f"be given with a module, and not with {where}", names)
