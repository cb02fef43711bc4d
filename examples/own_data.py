"""Data, model and loss of your own on the command line: three functions, which are all that it needs.

decomfl train --data own_data.py:clients --model own_data.py:model --loss own_data.py:loss --lr 0.01 --out runs/own
decomfl kappa runs/own --trust-code
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def clients() -> tuple[list[TensorDataset], TensorDataset]:
    """The examples of ten clients, and those held out; a Dataset alone, without the list, is dealt to --clients."""
    x = torch.randn(1100, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, :2].sum(1) > 0).long()
    parts = [TensorDataset(x[n : n + 100], y[n : n + 100]) for n in range(0, 1100, 100)]
    return parts[:10], parts[10]


def model() -> nn.Module:
    """The model at x_0, from a seed of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch, a scalar tensor."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
