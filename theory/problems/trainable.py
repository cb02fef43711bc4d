"""Quadratics with known truth as a run has them: a module, a loss and clients' data, for every method of the lab.

A run names them by ``module:name``: ``--model theory.problems.trainable:KAPPA_4.model``, ``--data`` likewise with
``KAPPA_4.data`` and ``--loss theory.problems.trainable:mean_output``.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor, nn

from theory.problems.problem import Bowl
from theory.problems.quadratic import Quadratic
from theory.problems.spectrum import Spectrum


@dataclass(frozen=True)
class Trainable:
    """A ``Bowl`` whose clients have two examples each, the tilts b_i + s and b_i − s of their losses.

        f_i(x; ξ) = ½ Σ_j λ_j y_j² − (b_i ± s)ᵀy,   y = Qx

    The held-out example has no tilt, so that the test loss is f(x) − f*, in the units of the loss.
    """

    bowl: Bowl  # the problem by coordinates
    # Whether Q is the orthonormal cosine transform, so that no eigenvector lies along an axis; else Q = I.
    turned: bool = False

    def model(self) -> nn.Module:
        """The loss of a tilt at the parameters, which begin at x_0."""
        turn = torch.from_numpy(dct(np.eye(self.bowl.start.size), norm="ortho")) if self.turned else None
        return _Bowl(torch.from_numpy(self.bowl.eigenvalues), torch.from_numpy(self.bowl.start), turn)

    def data(self) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
        """Every client's two tilts, and the one held-out example, with targets that nobody reads."""
        bowl = self.bowl
        clients, xi = np.repeat(np.arange(bowl.M), 2), np.tile([0.25, 0.75], bowl.M)
        origin = np.zeros((2 * bowl.M, bowl.start.size))
        tilts = torch.from_numpy(-bowl.sampled_gradient(origin, clients, xi)).float().reshape(bowl.M, 2, -1)
        return [(own, torch.zeros(2)) for own in tilts], (torch.zeros_like(tilts[0, :1]), torch.zeros(1))


class _Bowl(nn.Module):
    """See ``Trainable``."""

    eigenvalues: Tensor
    turn: Tensor | None

    def __init__(self, eigenvalues: Tensor, start: Tensor, turn: Tensor | None) -> None:
        super().__init__()
        x = start if turn is None else turn.T @ start
        self.x = nn.Parameter(x.float())
        self.register_buffer("eigenvalues", eigenvalues.float())
        self.register_buffer("turn", None if turn is None else turn.float())

    def forward(self, tilts: Tensor) -> Tensor:
        """½ Σ_j λ_j y_j² − tᵀy for every tilt t, shape (B,)."""
        y = self.x if self.turn is None else self.turn @ self.x
        return 0.5 * (self.eigenvalues * y * y).sum() - tilts @ y


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001 (of a loss)
    """The mean of the outputs, which are losses already."""
    return outputs.mean()


def _of(kappa: float, *, turned: bool = False) -> Trainable:
    """A problem of d = 256, L = 1 F/X², D = 1 F shared by both groups of eigenvalues, σ = σ_G = 0.1 F/X, 20 clients."""
    spectrum = Spectrum.two_level(256, kappa)
    return Trainable(Bowl(Quadratic.of(spectrum, sigma=0.1, sigma_G=0.1, start=(1, 1)), M=20), turned)


KAPPA_4: Final = _of(4)
KAPPA_32: Final = _of(32)
TURNED_32: Final = _of(32, turned=True)
