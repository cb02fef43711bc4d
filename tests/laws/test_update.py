"""The laws of anybody's training step: right ones keep all of them, and a fault of each kind breaks its own."""

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from decomfl_lab.cli.main import main
from decomfl_lab.estimators.differences import central
from decomfl_lab.laws import UPDATE_LAWS, verify_update
from decomfl_lab.laws.exact import Copied, Functional, Replayed
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.optim import MeZO
from decomfl_lab.plugins import named
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.registry import make_replica
from decomfl_lab.replicas.rules import LowPrecision, Sgd, UpdateRule
from tests.cases import refuses, rows_of, sampled


class LabMeZO(Functional):
    """``decomfl_lab.optim.MeZO``: what its closure sees, which is no loss, is where it measures."""

    def weights(self) -> dict[str, Tensor]:
        seen: list[dict[str, Tensor]] = []

        def closure() -> float:
            seen.append({name: w.clone() for name, w in self.x.items()})
            return 0.0

        if not self.s:
            return dict(self.x)
        MeZO(self.x.items(), lr=1.0, mu=abs(self.s), seed=self.seed, strict=False, trust=True).measure(closure)
        return seen[self.s < 0]

    def update(self, seed: int, g: float, lr: float) -> None:
        losses = iter((g, -g))
        MeZO(self.x.items(), lr=lr, mu=1.0, seed=seed, strict=False, trust=True).step(lambda: next(losses))


class LabClient(Functional):
    """A client of the lab, by its engine: what its loss is given is where it measures."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        x = torch.cat([w.detach().reshape(-1) for w in self.x.values()])
        rule: UpdateRule = Sgd()
        if x.dtype.itemsize == 2:
            rule = LowPrecision(rule, Format(str(x.dtype).removeprefix("torch.")), "nearest")
        self.replica = make_replica(x, rule)

    def weights(self) -> dict[str, Tensor]:
        x, seen = self.replica.x, list[Tensor]()

        def loss(x: Tensor, step: int) -> float:
            seen.append(torch.as_tensor(x).clone())
            return 0.0

        if self.s:
            client = Client(0, self.replica, loss, central, abs(self.s))
            client.handle(Plan(self.replica.round, 0.1, 1, Distribution.GAUSSIAN, (self.seed,)))
            x = seen[self.s < 0]
        parts = x.split([w.numel() for w in self.x.values()])
        return {name: part.view(w.shape) for (name, w), part in zip(self.x.items(), parts, strict=True)}

    def update(self, seed: int, g: float, lr: float) -> None:
        scalars = np.array([[g]], np.float32)
        self.replica.apply(RoundRecord(self.replica.round, lr, Distribution.GAUSSIAN, (seed,), scalars))


class InNumpy(Functional):
    """Arrays of numpy, of another type than the module has, as those of an accelerator may be."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.x: dict[str, Any] = {name: w.detach().cpu().double().numpy().copy() for name, w in self.x.items()}

    def moved(self, seed: int, c: float) -> dict[str, Any]:
        generator = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32])
        return {name: x + c * generator.standard_normal(x.shape) for name, x in self.x.items()}

    def weights(self) -> dict[str, Any]:
        return self.moved(self.seed, self.s) if self.s else self.x

    def update(self, seed: int, g: float, lr: float) -> None:
        self.x = self.moved(seed, -lr * g)


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


ADAPTERS = Path(__file__).parents[2] / "examples" / "laws"
DRIFT = ["restored-once", "restored-a-thousand-times", "restored-in-16-bits", "replay-is-the-run"]


@pytest.mark.parametrize("name", sampled(RIGHT, 3))
def test_a_right_step_keeps_every_law(name: str) -> None:
    found = verify_update(RIGHT[name])
    assert not found.broken, found
    assert found.tried >= 11
    assert all("exact" in own.measured for own in found if own.tried and own.law in DRIFT)


# A fault for each law, planted in a step that is right.


class _Wrong(Copied):
    """A right step, of which each fault changes a method."""

    settings = ({"decay": 0.5},)
    ranks = 2

    def __init__(self, module: nn.Module, decay: float = 0.0, rank: int = 0) -> None:
        super().__init__(module)
        self.decay, self.rank, self.steps = decay, rank, list[Any]()

    def update(self, seed: int, g: float, lr: float) -> None:
        with torch.no_grad():
            for w in self.x.values():
                w.mul_(1 - lr * self.decay)
        super().update(seed, g, lr)
        self.steps.append((seed, g, lr))

    def log(self) -> Any:
        return self.steps

    def replay(self, log: Any) -> None:
        for step in log:
            self.update(*step)


def wrong(**methods: Any) -> type[_Wrong]:
    return type("Wrong", (_Wrong,), methods)


right_perturb, right_update, right_noise = _Wrong.perturb, _Wrong.update, _Wrong.noise


def there_and_back(self: Any, seed: int, s: float) -> None:
    with torch.no_grad():
        for _, w, z in self.noise(seed):
            w.add_((s * z).to(w.dtype))


def from_the_hundredth_on(self: Any, seed: int, s: float) -> None:
    right_perturb(self, seed, s)
    if seed >= 100 and not self.s:
        next(iter(self.x.values())).data.mul_(1 + 2e-7)


def kept_in_float16(self: Any, seed: int, s: float) -> None:
    right_perturb(self, seed, s)
    for w in self.x.values():
        w.data = w.data if self.s or w.dtype is torch.float32 else w.data.to(torch.float8_e5m2).to(w.dtype)


def counted(self: Any, seed: int, s: float) -> None:
    right_perturb(self, seed, s)
    self.measured = getattr(self, "measured", 0) + 1


def by_the_count(self: Any, seed: int, g: float, lr: float) -> None:
    right_update(self, seed, g, lr * (1 + 1e-3 * (getattr(self, "measured", 0) > 3)))


def of_the_seed(self: Any, seed: int) -> Any:
    for name, w in self.x.items():
        generator = np.random.Generator(np.random.Philox(key=seed))
        yield name, w, torch.from_numpy(generator.standard_normal(tuple(w.shape), dtype=np.float32))


def under_each_name(self: Any, seed: int) -> Any:
    count = {id(w): 0 for w in self.x.values()}
    for _, w in self.module.named_parameters(remove_duplicate=False):
        count[id(w)] = count.get(id(w), 0) + 1
    for name, w, z in right_noise(self, seed):
        yield name, w, z * count[id(w)]


def with_frozen_parts(self: Any, module: nn.Module, **options: Any) -> None:
    _Wrong.__init__(self, module, **options)
    self.x = dict(module.named_parameters())


def in_a_copy(self: Any, seed: int, s: float) -> None:
    self.x = {name: w for name, w in self.x.items() if w.is_contiguous()}
    right_perturb(self, seed, s)


def of_everybody(self: Any, seed: int) -> Any:
    np.random.seed(seed % 2**32)
    return right_noise(self, seed)


ALONG = "update-is-along-the-perturbation"
FAULTS: dict[str, tuple[str, type[_Wrong]]] = {
    "x is moved there and back": ("restored-once", wrong(perturb=there_and_back)),
    "x is moved from the hundredth measurement on": (
        "restored-a-thousand-times", wrong(perturb=from_the_hundredth_on)
    ),
    "x is kept in float16": ("restored-in-16-bits", wrong(perturb=kept_in_float16)),
    "an update depends on how often was measured": ("replay-is-the-run", wrong(perturb=counted, update=by_the_count)),
    "the log lacks the last update": ("log-replays", wrong(log=lambda self: self.steps[:-1])),
    "a setting is forgotten": ("settings-are-in-the-replay", wrong(update=Copied.update)),
    "the sign is turned": (ALONG, wrong(update=lambda self, seed, g, lr: right_update(self, seed, -g, lr))),
    "the rate is squared": (ALONG, wrong(update=lambda self, seed, g, lr: right_update(self, seed, g, lr * lr))),
    "the update has the noise of the next seed": (
        ALONG, wrong(update=lambda self, seed, g, lr: right_update(self, seed + 1, g, lr))
    ),
    "seed 0 is none": ("a-seed-is-a-direction", wrong(
        noise=lambda self, seed: right_noise(self, seed or random.Random().getrandbits(60))
    )),
    "seeds have 32 bits": ("seeds-differ", wrong(noise=lambda self, seed: right_noise(self, seed % 2**32))),
    "every tensor has the noise of the seed": ("tensors-have-their-own-noise", wrong(noise=of_the_seed)),
    "tied weights move under each name": ("tied-weights-move-once", wrong(noise=under_each_name)),
    "frozen parts move": ("only-trainable-numbers-move", wrong(__init__=with_frozen_parts)),
    "a view is moved in a copy": ("only-trainable-numbers-move", wrong(perturb=in_a_copy)),
    "the generator of everybody is seeded": ("randomness-of-others-stays", wrong(noise=of_everybody)),
    "ranks draw their own": ("ranks-agree", wrong(
        noise=lambda self, seed: right_noise(self, seed + 2**40 * self.rank)
    )),
}  # fmt: skip
"""The law that finds it, and the step."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_breaks_its_law_alone_of_those_that_have_nothing_to_do_with_it(name: str) -> None:
    law, step = FAULTS[name]
    (found,) = verify_update(step, laws=[law])
    assert found.status == "broken", found
    assert all(word in found.counterexample for word in ("differs", "module", "calls", "why"))


def test_every_law_has_a_fault_and_the_step_without_one_keeps_all() -> None:
    assert {law for law, _ in FAULTS.values()} == UPDATE_LAWS.keys()
    found = verify_update(_Wrong)
    assert (found.broken, found.tried) == ([], len(UPDATE_LAWS)), found


# Public code, by stand-ins with its faults.

SEEN = {
    "mezo_trainer": [*DRIFT, "seeds-differ", "randomness-of-others-stays"],
    "decomfl_reference": [*DRIFT, "seeds-differ"],
    "fedkseed": [*DRIFT, "seeds-differ", "randomness-of-others-stays"],
    "es_worker": [*DRIFT, "seeds-differ", "tensors-have-their-own-noise", "only-trainable-numbers-move"],
    "torch_sgd": [],
}


def adapter(name: str, attribute: str, in_place_of: Callable[..., None]) -> Any:
    for module, stand_in in STAND_INS.items():
        in_place_of(module, stand_in)
    return named("update", f"{ADAPTERS / name}.py:{attribute}")


@pytest.mark.parametrize("name", sampled(SEEN, 1))
def test_an_adapter_shows_the_faults_of_what_it_adapts(name: str, in_place_of: Callable[..., None]) -> None:
    found = verify_update(adapter(name, "Target", in_place_of))
    settings = ["settings-are-in-the-replay"] * (name == "fedkseed")  # the client's step does not decay
    assert sorted(found.broken) == sorted(SEEN[name] + settings), found
    assert len((ADAPTERS / f"{name}.py").read_text().splitlines()) <= 30


def test_a_share_of_the_norm_is_allowed_by_tolerance(in_place_of: Callable[..., None]) -> None:
    target = adapter("mezo_trainer", "Target", in_place_of)
    (found,) = verify_update(target, laws=["restored-once"], tolerance=1e-6)
    assert (found.status, "within" in found.measured) == ("holds", True)
    (found,) = verify_update(target, laws=["restored-in-16-bits"], tolerance=1e-6)
    assert "of the norm of x" in found.counterexample


def test_numbers_that_are_none_are_within_no_tolerance() -> None:
    lost = wrong(update=lambda self, seed, g, lr: right_update(self, seed, math.nan * (seed == 5 * 100_003) + g, lr))
    assert verify_update(lost, laws=["log-replays"], tolerance=0.5).broken
    spoiled = wrong(noise=lambda self, seed: ((n, w, z * math.nan) for n, w, z in right_noise(self, seed)))
    assert verify_update(spoiled, laws=["update-is-along-the-perturbation"]).broken


def test_a_module_of_ones_own_is_tried_after_the_kits() -> None:
    made = []

    def module() -> nn.Module:
        made.append(nn.Linear(3, 3))
        return made[-1]

    found = verify_update(Copied, module=module, laws=["restored-once"])
    assert (found[0].status, len(made)) == ("holds", 1)


@refuses(*rows_of(__file__)["refused"], error=ValueError)
def test_bad_arguments_are_refused(options: dict[str, Any]) -> None:
    verify_update(Copied, **options)


def test_what_a_step_raises_breaks_the_law_and_what_it_prints_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    class Raises(Copied):
        def perturb(self, seed: int, s: float) -> None:
            print("here")
            raise KeyError(seed)

    (found,) = verify_update(Raises, laws=["restored-once"])
    assert (found.status, found.counterexample) == ("crashed", "raised   KeyError: 1")
    assert capsys.readouterr().out == ""


def test_the_command_tries_a_step_and_says_how_it_ends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = "decomfl_lab.laws.exact:Functional"
    assert main(["verify", "--update", target, "--law", "restored-once", "--junit", str(tmp_path / "a.xml")]) == 0
    assert "1 of 1 laws hold" in capsys.readouterr().out
    assert "restored-once" in (tmp_path / "a.xml").read_text()
    (tmp_path / "mine.py").write_text(
        "from decomfl_lab.laws.exact import Copied\nclass Mine(Copied):\n    noise = None\n"
    )
    assert main(["verify", "--update", f"{tmp_path / 'mine.py'}:Mine", "--law", "seeds-differ", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["status"] == "crashed"
    for other in (["--target", "a:B"], ["--states"], ["--identity", "x.jsonl"]):
        assert main(["verify", "--update", target, *other]) == 2


@pytest.mark.thorough
def test_the_kits_stand_alone_in_somebody_elses_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--write", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["verify", "--write", str(tmp_path)]) == 2  # nothing is written over
    (tmp_path / "own.py").write_text(
        "import sys\nsys.modules['decomfl_lab'] = None\nimport identity_laws, update_laws\n"
        "print(update_laws.verify_update(type('T', (), {'__init__': lambda s, m: None, 'perturb': lambda *a: None,"
        " 'update': lambda *a: None})).broken[0])\n"
        "print(identity_laws.verify_identity(lambda step: step, {'step': 3}).broken)\n"
    )
    done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["update-is-along-the-perturbation", "[]"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "21 skipped" in done.stdout
