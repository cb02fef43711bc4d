"""A worker of evolution strategies (VsonicV/es-fine-tuning-paper, utils/worker_extn.py), put to the laws.

PYTHONPATH=es-fine-tuning-paper decomfl verify --update examples/laws/es_worker.py:Target
"""

from types import SimpleNamespace

from utils.worker_extn import WorkerExtension  # type: ignore[import-not-found]


class Target(WorkerExtension):
    """The worker around a module instead of a language model's runner."""

    def __init__(self, module):
        self.model_runner = SimpleNamespace(model=module)

    def perturb(self, seed, s):
        self.perturb_self_weights(seed, abs(s), negate=s < 0)

    def update(self, seed, g, lr):
        self.perturb_self_weights(seed, lr * abs(g), negate=g > 0)
