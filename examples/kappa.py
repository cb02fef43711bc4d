"""The effective rank κ of your own trained model.

κ = tr(H)/‖H‖₂ says how many directions its loss really curves in. ``python examples/kappa.py`` prints κ with
its interval and draws it; so does ``decomfl kappa --model examples.kappa:trained --data examples.kappa:loader``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessian


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    """1,797 digits of 8 × 8 pixels, in batches."""
    images, labels = load_digits(return_X_y=True)
    return DataLoader(TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels)), batch_size=200)


def trained() -> nn.Module:
    """A small network after ten epochs of Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        for images, labels in loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    kappa = hessian.effective_rank(trained(), nn.CrossEntropyLoss(), loader(), rtol=0.05, seed=0)
    print(kappa)
    print(kappa.summary())
    kappa.plot("kappa.png")
