"""κ of the same loss by PyHessian, the reference of the field, to stand beside the lab's own estimate."""

import importlib
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import require
from decomfl_lab.objectives.modules import copied
from hessian.estimate import Jsonable
from hessian.operators.mean_loss import MeanLoss
from hessian.readings import Reading


@dataclass(frozen=True)
class ByPyHessian(Jsonable):
    """tr H / ‖H‖₂ of PyHessian's two estimates, which have no interval."""

    trace: float  # the mean of ``trace()``: vᵀHv of random signs v
    norm: float  # |λ| of ``eigenvalues()``, by power iteration
    products: int  # H·v, of both

    @property
    def kappa(self) -> float:
        """κ = tr H / ‖H‖₂."""
        return self.trace / self.norm

    @property
    def reading(self) -> Reading:
        """κ as a line of a table."""
        words = f"tr {self.trace:.4g} / ‖H‖₂ {self.norm:.4g}, {self.products} products, no interval"
        return Reading("κ by PyHessian", self.kappa, words=words)


def by_pyhessian(objective: MeanLoss, *, seed: int = 0) -> ByPyHessian:
    """κ of the Hessian of a mean loss by PyHessian, each of its calls as its documentation has it.

    Its module is a copy; torch's random generators, from which PyHessian draws, are left as they were.

    Args:
        objective: The mean loss over examples, all of the same weight, that are pairs of tensors.
        seed: The seed of its random vectors.

    Raises:
        InputError: If PyHessian would take another function than this one.

    Source: Yao, Gholami, Keutzer and Mahoney, "PyHessian: neural networks through the lens of the Hessian", 2020.
    """
    pieces = objective.pieces
    pairs = all(isinstance(part, Tensor) for piece in pieces for part in piece.batch)
    require(pairs and objective.measure.is_of_outputs, "data", "be pairs (inputs, targets) for PyHessian", "others")
    n = sum(piece.examples for piece in pieces)
    alike = all(math.isclose(piece.share, piece.examples / n) for piece in pieces)
    require(alike, "weights", "be the same for all examples for PyHessian", "others")
    require(objective.mode != "batch", "normalisation", "be eval, which PyHessian sets", objective.mode)
    require(objective.weight_decay == 0, "weight_decay", "be 0 for PyHessian", objective.weight_decay)
    module = copied(objective.module).to(objective.device, objective.dtype)
    for name, p in module.named_parameters():
        p.requires_grad_(name in objective.names)
    objective.layout.bind(module, objective.x.clone())
    library: Any = importlib.import_module("pyhessian.hessian")

    class Counted(library.hessian):  # type: ignore[misc]
        products = 0

        def dataloader_hv_product(self, v: list[Tensor]) -> Any:
            self.products += 1
            return super().dataloader_hv_product(v)

    batches = [(objective.place(piece.inputs), objective.place(piece.targets)) for piece in pieces]
    # Torch warns of graphs that hold themselves, which end with the copy.
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        theirs = Counted(module, objective.measure.of_outputs, dataloader=batches, cuda=objective.device.type == "cuda")
        ((top,), _), trace = theirs.eigenvalues(), float(np.mean(theirs.trace()))
    module.zero_grad()
    return ByPyHessian(trace, abs(top), theirs.products)
