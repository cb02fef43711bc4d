"""The usual way, MeZO's and that of the authors' code: z by torch's ``randn``, and x moved in place."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.engines.base import Line


def move_(module: torch.nn.Module, seed: int, c: float) -> None:
    """Add c z to the parameters in place, a tensor at a time, z by torch's ``randn`` in float32."""
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for w in module.parameters():
        w.add_(torch.randn(w.shape, generator=generator, device=device).to(w.dtype), alpha=c)


@torch.inference_mode()
def in_place_scalars(
    module: torch.nn.Module, loss: Callable[[], float], seeds: Sequence[int], mu: float
) -> NDArray[np.float32]:
    """The scalars g, (P,), as MeZO and the authors' code measure them, a seed for each of the P directions.

    z is made three times: for x + μz, from there to x − μz, and back to x; the module's parameters are moved.
    """
    g = np.empty(len(seeds), dtype=np.float32)
    for p, seed in enumerate(seeds):
        move_(module, seed, mu)
        above = loss()
        move_(module, seed, -2 * mu)
        g[p] = (above - loss()) / (2 * mu)
        move_(module, seed, mu)
    return g


class WideLine(Line):
    """The points of a line, to the bit, in float64: of these are the reference scalars."""

    @property
    def x(self) -> Tensor:
        """(d,), float64."""
        return super().x.double()

    def form_(self, points: Sequence[Tensor], p: int, c: float, *, first: int = 0, workers: int | None = None) -> None:
        # Formed in float32, as the engines form them, and then widened: in float64 they would be other points.
        narrow = [torch.empty_like(point, dtype=torch.float32) for point in points]
        Line(self.replica, self.seed, self.distribution).form_(narrow, p, c, first=first, workers=workers)
        for point, formed in zip(points, narrow, strict=True):
            point.copy_(formed)


def scalar_error(g: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """The largest error of a scalar, in units of a typical one: max |g − g_ref| / √mean(g_ref²), both of one shape."""
    wide = reference.astype(np.float64)
    return float(np.abs(g - wide).max() / np.sqrt(np.mean(wide * wide)))
