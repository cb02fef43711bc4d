"""Training steps that are right, each in another way, and stand-ins for public code, with its faults."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decomfl_lab.estimators.differences import central
from decomfl_lab.laws.exact import Copied, Functional, Replayed
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.optim import MeZO
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.registry import make_replica
from decomfl_lab.replicas.rules import LowPrecision, Sgd, UpdateRule


class LabMeZO:
    """``decomfl_lab.optim.MeZO``: what its closure sees, which is no loss, is where it measures."""

    def __init__(self, module: nn.Module) -> None:
        self.named = [(name, w) for name, w in module.named_parameters() if w.requires_grad]
        self.seed, self.s = 0, 0.0

    def perturb(self, seed: int, s: float) -> None:
        self.seed, self.s = seed, self.s + s

    def weights(self) -> dict[str, Tensor]:
        seen: list[dict[str, Tensor]] = []

        def closure() -> float:
            seen.append({name: w.clone() for name, w in self.named})
            return 0.0

        if not self.s:
            return dict(self.named)
        MeZO(self.named, lr=0.0, mu=abs(self.s), seed=self.seed, strict=False, trust=True).measure(closure)
        return seen[self.s < 0]

    def update(self, seed: int, g: float, lr: float) -> None:
        losses = iter((g, -g))
        MeZO(self.named, lr=lr, mu=1.0, seed=seed, strict=False, trust=True).step(lambda: next(losses))


class LabClient:
    """A client of the lab, by its engine: what its loss is given is where it measures."""

    def __init__(self, module: nn.Module) -> None:
        named = [(name, w) for name, w in module.named_parameters() if w.requires_grad]
        self.shapes = {name: w.shape for name, w in named}
        x = torch.cat([w.detach().reshape(-1) for _, w in named])
        rule: UpdateRule = Sgd()
        if x.dtype.itemsize == 2:
            rule = LowPrecision(rule, Format(str(x.dtype).removeprefix("torch.")), "nearest")
        self.seen: list[Tensor] = []
        self.replica = make_replica(x, rule)
        self.seed, self.s = 0, 0.0

    def __call__(self, x: Tensor, step: int) -> float:
        self.seen.append(torch.as_tensor(x).clone())
        return 0.0

    def perturb(self, seed: int, s: float) -> None:
        self.seed, self.s = seed, self.s + s

    def weights(self) -> dict[str, Tensor]:
        x = self.replica.x
        if self.s:
            self.seen.clear()
            client = Client(0, self.replica, self, central, abs(self.s))
            client.handle(Plan(self.replica.round, 0.1, 1, Distribution.GAUSSIAN, (self.seed,)))
            x = self.seen[self.s < 0]
        parts = x.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def update(self, seed: int, g: float, lr: float) -> None:
        scalars = np.array([[g]], np.float32)
        self.replica.apply(RoundRecord(self.replica.round, lr, Distribution.GAUSSIAN, (seed,), scalars))


class InNumpy:
    """Arrays of numpy, of another type than the module has, as those of an accelerator may be."""

    settings = ({"weight_decay": 0.1},)
    ranks = 2

    def __init__(self, module: nn.Module, weight_decay: float = 0.0, rank: int = 0) -> None:
        named = [(name, w) for name, w in module.named_parameters() if w.requires_grad]
        self.x = {name: w.detach().cpu().double().numpy().copy() for name, w in named}
        self.at, self.decay = dict(self.x), weight_decay

    def noise(self, seed: int) -> dict[str, Any]:
        generator = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32])
        return {name: generator.standard_normal(x.shape) for name, x in self.x.items()}

    def perturb(self, seed: int, s: float) -> None:
        self.s = getattr(self, "s", 0.0) + s
        self.at = {name: self.x[name] + self.s * z for name, z in self.noise(seed).items()} if self.s else self.x

    def weights(self) -> dict[str, Any]:
        return self.at

    def update(self, seed: int, g: float, lr: float) -> None:
        z = self.noise(seed)
        self.x = {name: x - lr * (g * z[name] + self.decay * x) for name, x in self.x.items()}
        self.at, self.s = self.x, 0.0


RIGHT: dict[str, Any] = {own.__name__: own for own in (Copied, Replayed, Functional, InNumpy, LabMeZO, LabClient)}


# Stand-ins --------------------------------------------------------------------------------------------------------


def _walk(weights: Any, generator: torch.Generator | None, s: float) -> None:
    for w in weights:
        w.data = w.data + s * torch.normal(0.0, 1.0, w.shape, generator=generator).to(w.dtype)


class Trainer:
    """In place, by the generator of everybody."""

    args: Any
    named_parameters_to_optim: Any

    def zo_perturb_parameters(self, random_seed: int, scaling_factor: float) -> None:
        torch.manual_seed(random_seed)
        _walk([w for _, w in self.named_parameters_to_optim], None, scaling_factor * self.args.zo_eps)


class Estimator:
    """In place, by a generator of its own, whose seed mixes two numbers into one."""

    def __init__(self, weights: Any, **_: Any) -> None:
        self.weights_ = list(weights)

    def get_rng(self, seed: int, p: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed * (p + 17) + p)

    def generate_perturbation_norm(self, generator: torch.Generator) -> torch.Generator:
        return generator

    def perturb_model(self, generator: torch.Generator, alpha: float) -> None:
        _walk(self.weights_, generator, alpha)

    def update_model_given_seed_and_grad(self, optimizer: Any, seeds: Any, scalars: Any) -> None:
        for seed, g in zip(seeds, scalars, strict=True):
            _walk(self.weights_, self.get_rng(seed, 0), -optimizer.param_groups[0]["lr"] * float(g))


class Framework:
    """In place; the server's step decays what the client's does not."""

    zo_random_seed: int
    projected_grad: float

    def __init__(self, module: nn.Module, args: Any, lr: float, candidate_seeds: Any) -> None:
        self.weights_, self.args, self.lr = [w for w in module.parameters() if w.requires_grad], args, lr

    def _zo_perturb_parameters(self, scaling_factor: float) -> None:
        torch.manual_seed(self.zo_random_seed)
        _walk(self.weights_, None, scaling_factor * self.args.zo_eps)

    def zo_update(self, seed: int | None = None, grad: float | None = None) -> None:
        torch.manual_seed(self.zo_random_seed if seed is None else seed)
        if seed is not None:
            for w in self.weights_:
                w.data = w.data * (1 - self.lr * self.args.weight_decay)
        _walk(self.weights_, None, -self.lr * (self.projected_grad if grad is None else grad))


class Worker:
    """In place, every tensor from the beginning of the seed's stream."""

    model_runner: Any

    def perturb_self_weights(self, seed: int, noise_scale: float, negate: bool = False) -> None:
        for w in self.model_runner.model.parameters():
            _walk([w], torch.Generator().manual_seed(seed), -noise_scale if negate else noise_scale)


def _module(name: str, **of: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(of)
    return made


STAND_INS = {
    "trainer": _module("trainer", OurTrainer=Trainer),
    "cezo_fl": _module("cezo_fl"),
    "cezo_fl.gradient_estimators": _module("cezo_fl.gradient_estimators"),
    "cezo_fl.gradient_estimators.random_gradient_estimator": _module("e", RandomGradientEstimator=Estimator),
    "optimizers": _module("optimizers"),
    "optimizers.mezo_optimizer": _module("optimizers.mezo_optimizer", MeZOFramework=Framework),
    "utils": _module("utils"),
    "utils.worker_extn": _module("utils.worker_extn", WorkerExtension=Worker),
}
"""Modules by the names that the adapters of examples/laws import."""
