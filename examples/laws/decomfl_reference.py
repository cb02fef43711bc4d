"""The paper's own code: PYTHONPATH=DeComFL decomfl verify --update examples/laws/decomfl_reference.py:Target.

Its client takes x back from a copy at the next pull: what a measurement leaves behind lives for the rounds in between.
"""

import torch
from cezo_fl.gradient_estimators.random_gradient_estimator import RandomGradientEstimator  # type: ignore


class Target:
    """Its gradient estimator with P = 1, and SGD as its client has it."""

    def __init__(self, module):
        self.weights_ = [w for w in module.parameters() if w.requires_grad]
        dtype = self.weights_[0].dtype
        self.estimator = RandomGradientEstimator(self.weights_, torch_dtype=dtype, device="cpu")

    def perturb(self, seed, s):
        z = self.estimator.generate_perturbation_norm(self.estimator.get_rng(seed, 0))
        self.estimator.perturb_model(z, alpha=s)

    def update(self, seed, g, lr):
        sgd = torch.optim.SGD(self.weights_, lr=lr)
        self.estimator.update_model_given_seed_and_grad(sgd, [seed], [torch.tensor([g])])


def noise(seed, p):
    """The seed of direction p: ``identity_suite(noise, own={"seed": 8, "p": 8})``."""
    return RandomGradientEstimator([torch.nn.Parameter(torch.zeros(1))], device="cpu").get_rng(seed, p).initial_seed()
