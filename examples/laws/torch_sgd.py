"""An optimizer of torch by gradients g·z: decomfl verify --update examples/laws/torch_sgd.py:Target."""

import torch


class Target:
    """torch.optim.SGD; x is kept while it is perturbed, and put back. Try it with other optimizers."""

    settings = ({"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True})

    def __init__(self, module, **options):
        self.weights_ = [w for w in module.parameters() if w.requires_grad]
        self.optimizer, self.s = torch.optim.SGD(self.weights_, lr=0.0, **options), 0.0

    def noise(self, seed):
        generator = torch.Generator().manual_seed(seed * 2654435761 % 2**61 % (2**32 - 5))  # it keeps 32 bits
        return [torch.randn(w.shape, generator=generator).to(w) for w in self.weights_]

    def perturb(self, seed, s):
        self.x = [w.detach().clone() for w in self.weights_] if self.s == 0 else self.x
        self.s += s
        for w, x, z in zip(self.weights_, self.x, self.noise(seed), strict=True):
            w.data.copy_(x + self.s * z if self.s else x)

    def update(self, seed, g, lr):
        self.optimizer.param_groups[0]["lr"] = lr
        for w, z in zip(self.weights_, self.noise(seed), strict=True):
            w.grad = g * z
        self.optimizer.step(), self.optimizer.zero_grad()
