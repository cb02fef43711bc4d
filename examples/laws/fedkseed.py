"""FedKSeed (zhenqincn/FedKSeed): PYTHONPATH=FedKSeed decomfl verify --update examples/laws/fedkseed.py:Target."""

from types import SimpleNamespace

from optimizers.mezo_optimizer import MeZOFramework  # type: ignore[import-not-found]


class Target:  # zo_eps is 1, so that scaling factors are s
    settings = ({"weight_decay": 0.5},)

    def __init__(self, module, weight_decay=0.0):
        self.steps = []
        args = SimpleNamespace(zo_eps=1.0, weight_decay=weight_decay, grad_clip=0.0)
        self.framework = MeZOFramework(module, args, lr=0.0, candidate_seeds=[0])

    def perturb(self, seed, s):
        self.framework.zo_random_seed = seed
        self.framework._zo_perturb_parameters(scaling_factor=s)

    def update(self, seed, g, lr):  # as a client that trains
        self.framework.zo_random_seed, self.framework.projected_grad, self.framework.lr = seed, g, lr
        self.framework.zo_update()
        self.steps.append((seed, g, lr))

    def log(self):
        return self.steps

    def replay(self, log):  # as a server that follows
        for seed, g, self.framework.lr in log:
            self.framework.zo_update(seed=seed, grad=g)
