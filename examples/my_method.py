"""A method of your own.

It is DeComFL whose clients clip their scalars before they send them. ``decomfl verify --target my_method:Clipped``;
``decomfl train my_method:Clipped --limit 0.5 --data digits --model mlp``, both in this folder.
"""

from dataclasses import dataclass, replace

import torch

import decomfl_lab as lab


class Clipping:
    """An estimator around another one."""

    def __init__(self, inner, limit):
        self.inner, self.limit, self.wants_slopes, self.points = inner, limit, inner.wants_slopes, inner.points

    def combine(self, values, slopes, mu):
        found = self.inner.combine(values, slopes, mu)
        clamp = torch.clamp if isinstance(found.g, torch.Tensor) else lambda g, low, high: g.clip(low, high)
        return replace(found, g=clamp(found.g, -self.limit, self.limit))


@dataclass(frozen=True, kw_only=True)
class Clipped(lab.DeComFL):
    """DeComFL with scalars in [-c, c]."""

    limit: float = lab.option(1.0, "The largest scalar c that a client sends.")

    def measured_by(self):
        return Clipping(super().measured_by(), self.limit)


if __name__ == "__main__":
    for limit in (0.01, 1.0):
        run = lab.Run(
            lab.TrainConfig(Clipped(limit=limit), data="digits", model="mlp", clients=10, sampled=4, rounds=40)
        )
        run.train()
        print(f"c = {limit}: loss {run.metrics.test_loss.iloc[-1]:.3f}; {run.verify()}; {run.check_traffic()}")
