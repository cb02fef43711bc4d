"""MeZO's trainer (princeton-nlp/MeZO, large_models/trainer.py), put to the laws of a training step.

PYTHONPATH=MeZO/large_models decomfl verify --update examples/laws/mezo_trainer.py:Target
"""

from types import SimpleNamespace

from trainer import OurTrainer  # type: ignore[import-not-found]


class Target(OurTrainer):
    """The trainer without its data: zo_eps is 1, so that scaling factors are s."""

    def __init__(self, module):
        self.args = SimpleNamespace(zo_eps=1.0)
        self.named_parameters_to_optim = [(name, w) for name, w in module.named_parameters() if w.requires_grad]

    def perturb(self, seed, s):
        self.zo_perturb_parameters(random_seed=seed, scaling_factor=s)

    def update(self, seed, g, lr):  # by what zo_update does: the same noise, by -lr·g
        self.zo_perturb_parameters(random_seed=seed, scaling_factor=-lr * g)
