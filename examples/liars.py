"""One liar of ten, who sends 100 times its scalars in every round, under each rule of aggregation.

python examples/liars.py            # MNIST digits, 200 rounds, as in docs/robust.md
python examples/liars.py digits 40  # smaller digits, fewer rounds
"""

import sys
from dataclasses import dataclass, replace

import decomfl_lab as lab


class Times100:  # the scalars of another estimator
    def __init__(self, inner):
        self.inner, self.wants_slopes, self.points = inner, inner.wants_slopes, inner.points

    def combine(self, values, slopes, mu):
        found = self.inner.combine(values, slopes, mu)
        return replace(found, g=100.0 * found.g)


@dataclass(frozen=True, kw_only=True)
class OneLiar(lab.DeComFL):
    """DeComFL whose client 0 lies."""

    def clients(self, *given, **options):
        clients = super().clients(*given, **options)
        clients[0].estimator = Times100(clients[0].estimator)
        return clients


if __name__ == "__main__":
    data, rounds = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("mnist", 200)
    size = {"clients": 10, "sampled": 10, "rounds": rounds, "batch_size": 64, "eval_every": rounds}
    for rule in (lab.Mean(), lab.Median(), lab.TrimmedMean(1), lab.ClippedMean(), lab.Krum(1)):
        for kind in (lab.DeComFL, OneLiar):
            run = lab.Run(lab.TrainConfig(kind(aggregation=rule, lr=0.003), data=data, model="mlp", **size))
            run.train()
            print(f"{rule}, {kind.__name__}: accuracy {run.metrics.test_accuracy.iloc[-1]:.3f}", flush=True)
