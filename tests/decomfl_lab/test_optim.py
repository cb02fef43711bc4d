"""MeZO as an optimizer of torch: its steps, its log, and what others may do between them."""

import contextlib
import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import decomfl_lab as lab
from decomfl_lab import InputError, optim
from decomfl_lab.cli.main import main
from decomfl_lab.methods.memory import ENVIRONMENT, status_bytes
from decomfl_lab.noise import derive_seed, direction
from decomfl_lab.optim import MeZO
from decomfl_lab.processes import environment
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.storage.tables import text_beside
from tests.cases import refuses, rows_of, sampled
from tests.decomfl_lab.language.tiny import tiny, transformers
from tests.decomfl_lab.runs.rewritten import chained, parted
from tests.situations.judge import Mine, made, same

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
W, V = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))


def net(dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Dropout(dropout), nn.Linear(30, 2)).to(dtype)


def loss_of(model: nn.Module) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        return cross_entropy(model(X.to(next(model.parameters()).dtype)).float(), Y)

    return loss


def steps(optimizer: MeZO, model: nn.Module, n: int = 5) -> list[float | None]:
    return [optimizer.step(loss_of(model)) for _ in range(n)]


def grouped(model: nn.Module) -> list[dict[str, Any]]:
    """Weights, which decay, and biases, which do not and have a learning rate of their own."""
    named = list(model.named_parameters())
    weights, biases = ([each for each in named if kind in each[0]] for kind in ("weight", "bias"))
    return [{"params": weights, "lr": 0.04, "weight_decay": 0.2}, {"params": biases, "lr": 0.01}]


def trained(
    log: Path | str | None = None, n: int = 5, model: nn.Module | None = None, **options: Any
) -> tuple[Any, MeZO]:
    """A model, ``net()`` unless it is given, and its optimizer after n steps."""
    model = net() if model is None else model
    params = grouped(model) if options.pop("groups", False) else model.named_parameters()
    optimizer = MeZO(params, **{"lr": 0.05, "log": log} | options)
    steps(optimizer, model, n)
    return model, optimizer


# A step


Kind = dict[str, Any]
KINDS: dict[str, Kind] = {
    "plain": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "groups": {"groups": True},
    "groups with momentum": {"groups": True, "momentum": 0.9},
}
of_each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@of_each_kind
def test_a_step_is_that_of_torch_with_the_estimate_as_gradient(kind: Kind, tmp_path: Path) -> None:
    """In real arithmetic: λx is added to the gradient, goes into m with it, and x moves by ηm, with η of its group."""
    model, P = net(torch.float64), 3
    other = copy.deepcopy(model)
    _, optimizer = trained(tmp_path / "run.dcl", 3, model, perturbations=P, seed=9, **kind)
    plain = {name: value for name, value in kind.items() if name != "groups"}
    sgd = torch.optim.SGD(grouped(other) if "groups" in kind else other.parameters(), 0.05, **plain)
    own, ws = ([w for group in each.param_groups for w in group["params"]] for each in (optimizer, sgd))
    with RunLog.open(tmp_path / "run.dcl", write=False) as log:
        records = log.records(0)
    for r, record in enumerate(records):
        seed = derive_seed(derive_seed(derive_seed(9, 2), r), 0)
        estimate = sum(float(g) * direction(seed, p, 242) for p, g in enumerate(record.scalars[0])) / P
        for w, part in zip(ws, torch.from_numpy(estimate).split([w.numel() for w in ws]), strict=True):
            w.grad = part.view(w.shape).double()
        sgd.step()
    torch.testing.assert_close(own, ws, rtol=1e-5, atol=1e-6)
    m = [optimizer.state[w].get("momentum") for w in own]
    torch.testing.assert_close(m, [sgd.state[w].get("momentum_buffer") for w in ws], rtol=1e-5, atol=1e-5)


def test_its_records_are_those_of_a_federation_of_one_client(tmp_path: Path) -> None:
    model = net()
    method = lab.DeComFL(perturbations=2, mu=1e-3, rule=lab.Sgd(), seeds="per-run", lean=True, lr=0.05)
    options = {"batch_size": 24, "rounds": 4, "engine": "serial", "progress": False}
    run = lab.train(model, cross_entropy, [(X, Y)], method=method, out=tmp_path / "run", **options)
    mine, _ = trained(tmp_path / "mine.dcl", 4, perturbations=2)
    with RunLog.open(tmp_path / "mine.dcl") as ours, RunLog.open(tmp_path / "run" / "run.dcl") as theirs:
        for own, other in zip(ours.records(0), theirs.records(0), strict=True):
            np.testing.assert_allclose(own.scalars, other.scalars, atol=2e-3)
            assert (own.seeds, own.eta, own.seeding) == (other.seeds, other.eta, other.seeding)
    for own, other in zip(mine.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_frozen_parameters_stay_and_tied_ones_are_one_and_one_that_is_not_used_can_be_allowed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    start = copy.deepcopy(model)
    trained(tmp_path / "run.dcl", model=model)
    assert torch.equal(model[2].bias, start[2].bias)
    assert not torch.equal(model[0].weight, start[0].weight)
    assert lab.replay(tmp_path / "run.dcl", start).model[1].weight.equal(model[0].weight)
    MeZO([*model.parameters(), V], 0.02, strict=False).step(loss_of(model))


# The trial


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_trial_changes_no_bit_and_costs_the_first_step_and_those_with_digests(dropout: float) -> None:
    calls: list[list[int]] = []
    models = []
    for trust in (False, True):
        model, counted = net(dropout=dropout), [0] * 6
        optimizer = MeZO(model.parameters(), 0.05, digest_every=4, trust=trust)
        for step in range(6):

            def loss(step: int = step, counted: list[int] = counted, model: nn.Module = model) -> Tensor:
                counted[step] += 1
                return loss_of(model)()

            optimizer.step(loss)
        calls.append(counted)
        models.append(model)
    assert same(*models)
    assert calls[1] == [2] * 6
    assert 20 < calls[0][0] <= 40
    assert calls[0][1:] == [2, 2, 2, 6, 2]


def test_a_closure_that_changes_later_is_found_at_the_next_digest() -> None:
    model = net()
    optimizer = MeZO(model.parameters(), 0.05, digest_every=3)
    numbers = iter(range(10**6))

    def loss() -> Tensor:
        return loss_of(model)() + (0.1 * next(numbers) if optimizer.steps > 1 else 0.0)

    for _ in range(3):
        optimizer.step(loss)
    with pytest.raises(InputError, match="same in every evaluation: draw the batch before the closure"):
        optimizer.step(loss)


# Steps in surroundings


def test_compiled_modules_are_measured_as_they_were_written() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise AssertionError("compiled code would keep the first direction")

    model, other = net(), net()
    losses = steps(MeZO(model.parameters(), 0.05), model, 3)
    assert steps(MeZO(other.parameters(), 0.05), torch.compile(other, backend=backend), 3) == losses
    assert same(model, other)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda own: lr_scheduler.LambdaLR(own, lambda t: min(t, 4) / 4),
    "OneCycleLR": lambda own: lr_scheduler.OneCycleLR(own, [0.1, 0.025], total_steps=7, cycle_momentum=False),
    "CosineAnnealingLR": lambda own: lr_scheduler.CosineAnnealingLR(own, 3, eta_min=1e-14),
    "ReduceLROnPlateau": lambda own: lr_scheduler.ReduceLROnPlateau(own, patience=0),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_schedulers_set_the_learning_rate_that_the_log_has(make: Callable[[Any], Any], tmp_path: Path) -> None:
    """That of the first group; the second one, which is added before the first step, keeps its share."""
    model, start = net(), net()
    weights, biases = grouped(model)
    optimizer = MeZO([weights], 1.0, log=tmp_path / "run.dcl")
    optimizer.add_param_group(biases)
    sgd = torch.optim.SGD([{"params": [W], "lr": 0.04}, {"params": [V], "lr": 0.01}])
    schedules = [make(optimizer), make(sgd)]
    used = []
    for _ in range(6):
        used.append(sgd.param_groups[0]["lr"])
        optimizer.step(loss_of(model))
        sgd.step()
        for each in schedules:
            each.step(*[1.0] * isinstance(each, lr_scheduler.ReduceLROnPlateau))
    assert len({*used}) > 1
    with RunLog.open(tmp_path / "run.dcl") as log:
        assert [record.eta for record in log.records(0)] == [eta for eta in used if eta]
    assert same(lab.replay(tmp_path / "run.dcl", start).model, model)


@refuses(
    (lambda own: lr_scheduler.OneCycleLR(own, 0.1, total_steps=7, cycle_momentum=False), "lists for max_lr"),
    (lambda own: lr_scheduler.CosineAnnealingLR(own, 3, eta_min=0.01), r"lr of group 1 .* and 0 for eta_min"),
    (lambda own: own.param_groups[0].update(lr=0.0), "lr of group 1 must be"),
    (lambda own: own.param_groups[1].update(weight_decay=1.0), r"weight_decay of group 1 must stay 0\.0"),
    (lambda own: own.add_param_group({"params": [W]}), "group of parameters must be there before the first step"),
)
def test_what_changes_one_group_alone_is_refused(act: Callable[[MeZO], Any]) -> None:
    model, optimizer = trained(n=1, groups=True)
    schedule = act(optimizer)
    for _ in range(3):
        optimizer.step(loss_of(model))
        if schedule is not None:
            schedule.step()


# The log


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("dtype", "distribution", "kind"),
    sampled(product(DTYPES, ("gaussian", "sphere", "rademacher"), KINDS.values()), 9),
)
def test_the_log_replays_to_the_bit(dtype: torch.dtype, distribution: str, kind: Kind, tmp_path: Path) -> None:
    options = {"perturbations": 2, "distribution": distribution, "weight_decay": 0.01, "digest_every": 2, **kind}
    model, optimizer = trained(tmp_path / "run.dcl", model=net(dtype), lr=0.02, mu=0.01, **options)
    optimizer.seal()
    start = net(dtype)
    found = lab.replay(tmp_path / "run.dcl", start)
    assert found.agrees
    assert [each.round for each in found.compared] == [0, 2, 4, 5]
    assert same(found.model, model)
    assert not same(found.model, start)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_log_with_its_start_needs_no_model(dtype: torch.dtype, tmp_path: Path) -> None:
    model, optimizer = trained(tmp_path / "run.dcl", model=net(dtype), lr=0.02, mu=0.01, log_start=True)
    optimizer.seal()
    file = tmp_path / "end.safetensors"
    assert main(["replay", str(tmp_path / "run.dcl"), "--save", str(file)]) == 0
    assert {name: w.tolist() for name, w in load_file(file).items()} == {
        name: w.tolist() for name, w in model.state_dict().items()
    }


def test_a_replay_says_whose_statistics_a_batchnorm_has(tmp_path: Path) -> None:
    model, batch = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(6, 5)
    start = copy.deepcopy(model)
    trained(tmp_path / "run.dcl", 2, model)
    found = lab.replay(tmp_path / "run.dcl", start)
    assert found.remark == "parameters only: buffers, as statistics, are those of the module that was given"
    assert torch.equal(found.model(batch), model(batch))


def test_the_command_takes_the_weights_of_the_start_from_a_file(tmp_path: Path) -> None:
    model = nn.Sequential(net(), nn.BatchNorm1d(2).eval())
    save_file(model.state_dict(), tmp_path / "start.safetensors")
    trained(tmp_path / "run.dcl", model=model)
    files = ["--start", str(tmp_path / "start.safetensors"), "--save", str(tmp_path / "end.safetensors")]
    assert main(["replay", str(tmp_path / "run.dcl"), *files]) == 0
    model.load_state_dict(before := copy.deepcopy(model.state_dict()))
    after = load_file(tmp_path / "end.safetensors")
    assert all(torch.equal(after[name], before[name]) for name in before)  # buffers too


@refuses(
    (None, {}, "must be given, as the log has not x_0"),
    (nn.Linear(5, 2), {}, r"must have the parameter '0\.weight' of the log"),
    (nn.Sequential(nn.Linear(5, 31), nn.Tanh(), nn.Dropout(), nn.Linear(31, 2)), {}, r"must be \(30, 5\)"),
    (net(), {"measure": [1]}, "measure must be left out for an optimizer's log"),
)
def test_a_replay_from_nothing_or_another_module_or_that_measures_is_refused(
    start: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    model, _ = trained(tmp_path / "run.dcl")
    assert "x_0 is not the run's" in str(lab.replay(tmp_path / "run.dcl", model))
    lab.replay(tmp_path / "run.dcl", start, **options)


GROUPS = [{"tensors": 2, "factor": 1.0, "weight_decay": 0.2}, {"tensors": 2, "factor": 0.25, "weight_decay": 0.0}]


@refuses(*rows_of(__file__)["groups"])
def test_groups_that_are_none_are_refused(groups: Any, version: int, tmp_path: Path) -> None:
    trained(tmp_path / "run.dcl", groups=True)
    text, bodies = parted((tmp_path / "run.dcl").read_bytes())
    assert json.loads(text)["groups"] == GROUPS
    header = json.dumps(json.loads(text) | {"groups": groups}).encode()
    (tmp_path / "run.dcl").write_bytes(chained(header, bodies, version=version))
    lab.replay(tmp_path / "run.dcl", net())


def test_a_step_is_a_hundred_bytes_and_four_for_each_further_direction(tmp_path: Path) -> None:
    sizes = []
    for P in (1, 4):
        path = tmp_path / f"{P}.dcl"
        model, optimizer = trained(path, 2, perturbations=P)
        before = path.stat().st_size
        steps(optimizer, model, 3)
        sizes.append((path.stat().st_size - before) // 3)
    assert sizes == [100, 112]


# What others may do


@pytest.mark.parametrize(
    ("closure", "said"),
    [
        (lambda model: loss_of(model)() * float("nan"), "losses of step 0 must be finite"),
        (lambda model: model(X), "loss of the closure must be one number, got (24, 2)"),
        (lambda model: str(loss_of(model)()), "loss of the closure must be a number"),
        (lambda model: loss_of(model)().backward(), "closure must return the loss without backward()"),
        (lambda model: torch.zeros(()), "no torch function was given parameter '0', '1', '2', '3'"),
        (lambda model: model[0].weight.add_(1).sum(), "add_ writes to parameter '0'"),
        (lambda model: torch.complex(loss_of(model)(), torch.zeros(())), "must be a real number"),
    ],
)
def test_a_closure_that_is_no_function_of_x_is_refused_and_nothing_has_happened(
    closure: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    model = net()
    optimizer = MeZO(model.parameters(), 0.02, log=tmp_path / "run.dcl")
    before = optimizer.digest()
    with pytest.raises(InputError) as error:
        optimizer.step(lambda: closure(model))
    assert said in str(error.value)
    assert (optimizer.digest(), optimizer.steps) == (before, 0)
    steps(optimizer, model)
    assert lab.replay(tmp_path / "run.dcl", net()).agrees


def test_an_update_that_was_cut_short_is_not_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    model, optimizer = trained(n=0)
    with monkeypatch.context() as patched:
        patched.setattr(optim, "rebuild_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(loss_of(model))
    with pytest.raises(InputError, match="step 0 must be taken whole"):
        optimizer.step(loss_of(model))


@refuses(
    ([], "parameters must hold some that are trained"),
    (W, r"parameters must be model\.named_parameters\(\)"),
    ([1.0], "parameter 0 must be a tensor"),
    ([W, W], "parameters must hold each once"),
    ([nn.Parameter(torch.ones(2, dtype=torch.complex64))], "dtype of parameter 0 must be one of"),
    ([2 * W], "parameter 0 must be a leaf"),
    ([nn.Parameter(torch.ones(3, device="meta"))], "must be dense, with values"),
    ([("a", W), nn.Parameter(torch.ones(1))], "names of the parameters must differ, and be of all or none"),
    ({W}, "parameters must be .* a list of groups of them, got 'set'"),
    ([{"weights": [W]}], "group must have params"),
    ([{"params": [W], "momentum": 0.9}], r"group must have params.* one for all, in MeZO\(\.\.\.\), got 'momentum'"),
    ([{"params": W, "lr": 0.0}, {"params": []}], "lr of the first group must be above 0, as the others are multiples"),
    ([{"params": W}, {"params": [], "weight_decay": -1}], "weight_decay of group 1 must be a finite number"),
)
def test_bad_parameters_are_named(params: Any) -> None:
    MeZO(params, lr=0.1)


@refuses(*rows_of(__file__)["mezo"])
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    MeZO([W], **{"lr": 0.1, **options})


def test_a_scaler_of_gradients_is_refused_where_it_is_enabled() -> None:
    model, optimizer = trained(n=0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model)()).backward()
    with pytest.raises(InputError, match=r"GradScaler must be left out.*step\(closure\)"):
        scaler.step(optimizer, loss_of(model))
    torch.amp.GradScaler("cpu", enabled=False).step(optimizer, loss_of(model))
    assert optimizer.steps == 1


def test_accelerate_takes_it_before_and_after_a_state_is_loaded(tmp_path: Path) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    whole, _ = trained()
    model, first = trained(tmp_path / "run.dcl", 0)
    _, again = trained(tmp_path / "run.dcl", 0, model)
    _, prepared = accelerator.prepare(model, first)
    steps(prepared, model, 3)
    again.load_state_dict(prepared.state_dict())
    _, prepared = accelerator.prepare(model, again)
    steps(prepared, model, 2)
    assert same(model, whole)
    assert same(lab.replay(tmp_path / "run.dcl", net()).model, whole)


def pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


@pytest.mark.filterwarnings("ignore:the loss:decomfl_lab.LabWarning")  # of differences in bfloat16
@pytest.mark.parametrize(
    ("copied", "dtype", "n", "kind"),
    sampled(product((copy.deepcopy, pickled), DTYPES[::2], (0, 3), KINDS.values()), 9),
)
def test_a_copy_with_its_model_goes_on_to_the_bit(
    copied: Callable[[Any], Any], dtype: torch.dtype, n: int, kind: Kind
) -> None:
    model = net(dtype)
    model[0].bias.requires_grad_(False)
    options = {"perturbations": 2, "seed": 4, "weight_decay": 0.1, "rounding": "nearest"}
    _, optimizer = trained(None, 0, model, **options | kind)
    lr_scheduler.ExponentialLR(optimizer, 0.9)
    steps(optimizer, model, n)
    other, again = copied((model, optimizer))
    before = again.digest()
    steps(optimizer, model)
    assert again.digest() == before
    steps(again, other)
    assert same(model, other)
    assert again.state_dict()["mezo"] == optimizer.state_dict()["mezo"]  # which has the digest of all vectors


OPEN = r"optimizer that is copied or pickled must have no open log: give its state_dict\(\) to load_state_dict of a new"
WRITTEN = r"be written to by steps alone.*'3.weight'"


@refuses(
    (lambda model, own: own.step(), "closure must be given"),
    (lambda model, own: [own.measure(loss_of(model)) for _ in range(2)], "measure must be followed by step"),
    (lambda model, own: (own.measure(loss_of(model)), model[3].weight.detach().add_(1), own.step()), WRITTEN),
    (lambda model, own: (setattr(model[3].weight, "data", model[3].weight + 1), steps(own, model)), WRITTEN),
    (lambda model, own: copy.copy(own), OPEN),
    (lambda model, own: trained("run.dcl"), "log must be a new file"),
    (
        lambda model, own: steps(MeZO([{"params": model[0].weight}, {"params": model[0].bias}], 1, log="other"), model),
        "names of the parameters must be there for a replay",
    ),
)
def test_what_a_log_would_not_have_is_refused(act: Callable[[Any, MeZO], Any], tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        act(*trained("run.dcl"))


def test_what_was_measured_is_forgotten_with_the_gradients() -> None:
    model, optimizer = trained()
    optimizer.measure(loss_of(model))
    optimizer.zero_grad()
    steps(optimizer, model)


# State


def resumed(state: dict[str, Any], weights: dict[str, Any], log: Path) -> tuple[nn.Module, MeZO]:
    """A model and its optimizer as a saved state has them."""
    model, optimizer = trained(log, 0, digest_every=2)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    return model, optimizer


def test_a_second_writer_is_told_and_the_log_is_that_of_one_model(tmp_path: Path) -> None:
    log = tmp_path / "run.dcl"
    model, optimizer = trained(log, 3)
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    steps(optimizer, model, 2)
    optimizer._log.close()
    (second, again), (third, other) = resumed(*saved, log), resumed(*saved, log)
    steps(other, third, 3)
    steps(again, second, 1)
    for _ in range(2):
        with pytest.raises(InputError, match="as one process alone writes to it"):
            steps(other, third, 1)
    again.seal()
    assert same(lab.replay(log, net()).model, second)


def test_a_state_has_nothing_of_size_d_and_is_refused_without_its_weights() -> None:
    _, optimizer = trained()
    assert len(repr(optimizer.state_dict())) < 800
    other, again = trained(n=0)
    again.load_state_dict(optimizer.state_dict())
    with pytest.raises(InputError, match="parameters must be those of the state"):
        steps(again, other)


@refuses(*rows_of(__file__)["states"])
def test_states_of_others_are_refused(change: dict[str, Any]) -> None:
    _, optimizer = trained(n=0)
    state = optimizer.state_dict()
    state["mezo"] = state["mezo"] | change if change else {}
    optimizer.load_state_dict(state)


def test_the_log_of_another_training_is_refused_and_left_alone(tmp_path: Path) -> None:
    model, mine = trained(tmp_path / "a", 3)
    trained(tmp_path / "b", 4, lr=0.06)
    content = (tmp_path / "b").read_bytes()
    _, again = trained(tmp_path / "b", 0, model)
    again.load_state_dict(mine.state_dict())
    with pytest.raises(InputError, match="have the 3 steps of the state"):
        steps(again, model)
    assert (tmp_path / "b").read_bytes() == content


# transformers; tests/situations/table_trainer.py has what its arguments do


def test_a_trainer_without_mezo_is_refused_before_its_first_step(tmp_path: Path) -> None:
    trainer = made(Mine, tiny("opt"), tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1)
    with pytest.raises(InputError, match=r"optimizers must be \(decomfl_lab\.optim\.MeZO\(\.\.\.\), None\)"):
        trainer.train()


PEAK = text_beside(__name__, "peak_of_a_step.txt")


@pytest.mark.thorough
@pytest.mark.skipif(status_bytes("VmHWM") is None, reason="this system does not tell peaks")
def test_a_step_needs_no_more_than_the_largest_tensor_beside_the_model() -> None:
    """d = 4.5 million, of which the embedding is a third; a step in place needs a tensor of noise, too."""
    transformers()
    words = [sys.executable, "-c", PEAK]
    done = subprocess.run(words, env=environment(ENVIRONMENT), capture_output=True, text=True, check=True)
    assert 1.3 < float(done.stdout) < 1.45
