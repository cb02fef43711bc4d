"""Matrices whose κ is known: diagonal ones, which stand for all of their eigenvalues, and Hessians of small nets.

Probes and start vectors are Gaussian, so the basis of eigenvectors does not matter.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, mse_loss

from hessian.operators.curvature import HessianOperator
from hessian.operators.mean_loss import MeanLoss
from hessian.operators.operator import DenseOperator, Operator, digest

Matrix = tuple[Operator, NDArray[np.float64]]  # a matrix, and its eigenvalues


class Diagonal(Operator):
    """The diagonal matrix of some eigenvalues."""

    name, dtype, device = "diagonal", torch.float64, torch.device("cpu")

    def __init__(self, eigenvalues: ArrayLike) -> None:
        self.values = torch.tensor(np.asarray(eigenvalues, dtype=np.float64))
        self.d = len(self.values)

    def matvec(self, v: Tensor) -> Tensor:
        return self.values * v

    def fingerprint(self) -> str:
        return digest("diagonal", self.values)


def _diagonal(*parts: ArrayLike) -> Callable[[], Matrix]:
    """The matrix of these eigenvalues."""
    eigenvalues = np.concatenate([np.atleast_1d(np.asarray(part, dtype=np.float64)) for part in parts])
    return lambda: (Diagonal(eigenvalues), eigenvalues)


def _dense(H: Tensor) -> Matrix:
    """The matrix H (d, d) made symmetric to the bit."""
    H = (H + H.T) / 2
    return DenseOperator(H), torch.linalg.eigvalsh(H).numpy()


def _digits() -> tuple[Tensor, Tensor]:
    """Digits of 4 × 4 pixels, (n, 4, 4), and what they are."""
    digits = load_digits()
    x = torch.tensor(digits.images[:150] / 16).reshape(-1, 4, 2, 4, 2).mean(dim=(2, 4))
    return x, torch.tensor(digits.target[:150])


def _net(widths: Sequence[int], activation: str, steps: int) -> Callable[[], Matrix]:
    """The Hessian, in float64, of a net trained on 150 digits of 4 × 4 pixels by ``steps`` steps of Adam.

    The net classifies digits by their remainder modulo its last width; where that is the first one, it is an
    autoencoder.
    """

    def make() -> Matrix:
        act = getattr(torch.nn.functional, activation)
        images, labels = _digits()
        x, y = images.flatten(1), labels % widths[-1]
        generator = torch.Generator().manual_seed(0)
        parts = []
        for n_in, n_out in pairwise(widths):
            parts += [torch.randn(n_out, n_in, generator=generator).double() * (2 / n_in) ** 0.5, torch.zeros(n_out)]

        def loss(w: Tensor) -> Tensor:
            tensors = [p.view_as(part) for p, part in zip(w.split([p.numel() for p in parts]), parts, strict=True)]
            h = x
            # Weights and biases in turns; the activation stands before every layer but the first.
            for i in range(0, len(tensors), 2):
                h = linear(act(h) if i else h, tensors[i], tensors[i + 1])
            return mse_loss(h, x) if widths[-1] == widths[0] else cross_entropy(h, y)

        w = torch.cat([part.double().flatten() for part in parts]).requires_grad_()
        optimizer = torch.optim.Adam([w], lr=5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(w).backward()
            optimizer.step()
        return _dense(torch.func.hessian(loss)(w.detach()))

    return make


def _module(make: Callable[[], nn.Module], steps: int, classes: int = 4) -> Callable[[], Matrix]:
    """The Hessian, in float64, of a module trained on those digits, (n, 4, 4), by ``steps`` steps of Adam."""

    def made() -> Matrix:
        images, labels = _digits()
        if classes == 2:  # zeros and ones, which a line divides
            images, labels = images[labels < 2], labels[labels < 2]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = make().double()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(module(images), labels % classes).backward()
            optimizer.step()
        H = HessianOperator(MeanLoss(module, cross_entropy, [(images, labels % classes)]))
        return _dense(H @ torch.eye(H.d, dtype=torch.float64))

    return made


class _Block(nn.Module):
    """A convolution, a residual block and a linear layer: 4 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 4) of images (n, 4, 4)."""
        h = self.stem(x[:, None]).relu()
        h = (h + self.second(self.first(h).relu())).relu()
        logits: Tensor = self.head(h.flatten(1))
        return logits


class _Rows(nn.Module):
    """A net over the rows of an image: an LSTM, or a transformer's layer, and a linear layer on its mean."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Identity() if kind == "lstm" else nn.Linear(4, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.body: nn.Module = nn.LSTM(4, 8, batch_first=True) if kind == "lstm" else layer
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 4) of images (n, 4, 4)."""
        h: Any = self.body(self.embed(x))
        logits: Tensor = self.head((h[0] if isinstance(h, tuple) else h).mean(1))
        return logits


_NARROW = np.linspace(0.95, 1.05, 1998)
"""A bulk that hardly spreads: after a Lanczos step or two all that is seen looks converged."""

SPECTRA: dict[str, Callable[[], Matrix]] = {
    "flat": _diagonal(np.linspace(0.5, 1.5, 300)),
    "few outliers": _diagonal([40.0, 25.0, 11.0, 6.0, -4.0], np.linspace(-0.2, 1.0, 195)),
    "one dominant": _diagonal(100.0, np.linspace(0.0, 1.0, 299)),
    "indefinite": _diagonal([30.0, 20.0, -12.0], np.linspace(-0.8, 1.2, 297)),
    "power law": _diagonal(1 / np.arange(1.0, 401.0)),
    "semicircle": _diagonal(1.2 + np.cos(np.pi * (np.arange(1000) + 0.5) / 1000)),
    # what a start vector hardly sees
    "a two above ones": _diagonal(2.0, np.ones(19_999)),
    "a three above ones": _diagonal(3.0, np.ones(19_999)),
    "narrow bulk and a spike": _diagonal(2.0, _NARROW),
    "narrow bulk and two spikes": _diagonal([4.0, 2.0], _NARROW),
    "long narrow bulk and a spike": _diagonal(1.5, np.linspace(0.95, 1.05, 19_999)),
    "ten outliers": _diagonal(100 * 0.7 ** np.arange(10), np.linspace(0, 0.02, 19_990)),
    # few eigenvalues left, or few at all
    "three and one left": _diagonal([100.0, 90.0, 80.0, 10.0], np.zeros(196)),
    "one beside 200 small": _diagonal(1.0, np.full(200, 0.02)),
    "halves": _diagonal(2.0 ** -np.arange(40.0)),
    "four fifths": _diagonal(0.8 ** np.arange(120.0)),
    "squares": _diagonal(np.arange(1.0, 2001.0) ** -2),
    "d = 3": _diagonal([3.0, 2.0, 1.0]),
    "d = 5": _diagonal([5.0, -1.0, 2.0, 0.3, 0.1]),
    "d = 12": _diagonal(1 / np.arange(1.0, 13.0)),
    "d = 20": _diagonal(10.0, np.linspace(0, 1, 19)),
    # signs
    "λ_min near −λ_max": _diagonal([10.0, -9.8, 5.0, -4.0], np.linspace(-0.5, 1, 300)),
    "−λ_min the larger": _diagonal([10.0, -10.1], np.linspace(0.2, 0.4, 300)),
    "negative trace": _diagonal([3.0, 2.0], -np.linspace(0, 1, 300)),
    # nets
    "ReLU net": _net((16, 6, 6, 4), "relu", 150),
    "tanh net": _net((16, 6, 6, 4), "tanh", 150),
    "untrained GELU net": _net((16, 7, 5), "gelu", 0),
    "autoencoder": _net((16, 5, 16), "tanh", 200),
    "separable logistic regression": _module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), 2000, classes=2),
    "residual block": _module(_Block, 200),
    "LSTM": _module(lambda: _Rows("lstm"), 200),
    "transformer": _module(lambda: _Rows("transformer"), 150),
}
"""Matrices of 3 to 20,000 dimensions, by what their spectrum is like."""
