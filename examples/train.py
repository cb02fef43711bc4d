"""Train a model of your own.

Its clients, also your own, send nothing but scalars; one that was away rebuilds the model to the bit.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import decomfl_lab as lab

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "my-run")

torch.manual_seed(0)
x = torch.randn(1200, 20)
y = (x[:, :2].sum(1) > 0).long()
clients = [(x[n : n + 100], y[n : n + 100]) for n in range(0, 1000, 100)]
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2))

run = lab.train(
    model,
    nn.functional.cross_entropy,
    clients,
    test=(x[1000:], y[1000:]),
    method=lab.DeComFL(perturbations=20, rule=lab.Momentum(0.9)),
    sampled=4,
    rounds=100,
    lr=0.01,
    eval_every=20,
    out=folder,
)
print(run.metrics[["round", "test_accuracy", "test_loss"]].to_string(index=False))
print(run.traffic, run.verify(), sep="\n")
run.plot(folder / "run.png")

again = lab.load(folder, model, clients=clients, test=(x[1000:], y[1000:]))
again.more(20)
print(f"after {again.round} rounds: accuracy {again.metrics.test_accuracy.iloc[-1]:.3f}")
