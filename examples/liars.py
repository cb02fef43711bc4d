"""One liar among ten clients, under each aggregation: it sends 100 times its scalars, or the opposite vote.

``python examples/liars.py`` trains on MNIST as in docs/robust.md, ``... digits 40`` on small digits for 40 rounds.
"""

import sys

import decomfl_lab as lab

if __name__ == "__main__":
    data, rounds = (sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 2 else ("mnist", 200)
    size = {"clients": 10, "sampled": 10, "rounds": rounds, "batch_size": 64, "eval_every": rounds}
    rules = (lab.Mean(), lab.Median(), lab.TrimmedMean(1), lab.ClippedMean(), lab.Krum(1))
    rows = [(lab.DeComFL(aggregation=rule, lr=0.003), "scaled") for rule in rules]
    for method, attack in (*rows, (lab.FeedSign(perturbations=20, lr=0.03), "sign")):
        for lies in ({}, {"attack": attack, "attackers": 1}):
            run = lab.Run(lab.TrainConfig(method, data=data, model="mlp", **size, **lies))
            run.train()
            accuracy = run.metrics.test_accuracy.iloc[-1]
            print(
                f"{method.aggregation}, {(lies and 'one liar') or 'nobody lies'}: accuracy {accuracy:.3f}", flush=True
            )
