"""A quadratic as a module and a loss, so that it can be trained like a net."""

import torch
from torch import Tensor, nn


class QuadraticBowl(nn.Module):
    """f(x) = ½ Σ_j λ_j x_j², with ``half_square`` and whatever examples, from a random x_0."""

    def __init__(self, eigenvalues: Tensor, seed: int) -> None:
        super().__init__()
        x = torch.randn(len(eigenvalues), generator=torch.Generator().manual_seed(seed))
        self.x, self.roots = nn.Parameter(x), eigenvalues.sqrt()

    def forward(self, inputs: Tensor) -> Tensor:
        """√λ_j x_j, once for each example."""
        return (self.roots * self.x).expand(len(inputs), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared norm of the outputs, the mean over examples."""
    return 0.5 * outputs.square().sum(1).mean()
