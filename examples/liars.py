"""One liar among ten clients, under each aggregation: it sends 100 times its scalars, or the opposite vote.

``python examples/liars.py`` trains on MNIST as in docs/robust.md, ``... digits 40`` on small digits for 40 rounds.
"""

import sys
from dataclasses import replace

import decomfl_lab as lab


class Lies:  # the scalars of another estimator
    def __init__(self, inner):
        self.inner, self.wants_slopes, self.points = inner, inner.wants_slopes, inner.points

    def combine(self, values, slopes, mu):
        found = self.inner.combine(values, slopes, mu)
        return replace(found, g=-found.g if found.g.dtype.kind == "i" else 100.0 * found.g)


def with_a_liar(kind):
    def clients(self, *given, **options):
        first, *others = kind.clients(self, *given, **options)
        first.estimator = Lies(first.estimator)
        return [first, *others]

    return type("OneLiar", (kind,), {"clients": clients, "__doc__": "The method, and client 0 lies."})


if __name__ == "__main__":
    data, rounds = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("mnist", 200)
    size = {"clients": 10, "sampled": 10, "rounds": rounds, "batch_size": 64, "eval_every": rounds}
    rules = (lab.Mean(), lab.Median(), lab.TrimmedMean(1), lab.ClippedMean(), lab.Krum(1))
    rows = [(lab.DeComFL, {"aggregation": rule, "lr": 0.003}) for rule in rules]
    for kind, options in (*rows, (lab.FeedSign, {"perturbations": 20, "lr": 0.03})):
        for own in (kind, with_a_liar(kind)):
            run = lab.Run(lab.TrainConfig(own(**options), data=data, model="mlp", **size))
            run.train()
            rule, found = run.config.method.aggregation, run.metrics.test_accuracy.iloc[-1]
            print(f"{rule}, {own.__name__}: accuracy {found:.3f}", flush=True)
