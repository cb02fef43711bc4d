"""The fused engine on OPT models: the losses of the model itself, whatever the prompts, and serial where it cannot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.engines import fused as engines
from decomfl_lab.engines import opt_kernel as kernel
from decomfl_lab.engines.base import Line, Serial
from decomfl_lab.engines.batched import Batched
from decomfl_lab.engines.fused import Fused
from decomfl_lab.engines.opt_kernel import OptNetwork
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.errors import InputError
from decomfl_lab.estimators.differences import central, forward
from decomfl_lab.language.adapters import lora_
from decomfl_lab.language.causal import Verbalized
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, in_dimension
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum, Sgd
from tests.decomfl_lab.language.tiny import ARCHITECTURES, PAD, V, answers, prompts, tiny, transformers

MU = 1e-3
TOLERANCE = 2.0**-22
"""Of a loss around 0.7: a few of its roundings to float32. A scalar is two of these apart over 2μ, 2.4e-4 at most."""


def lively(**options: Any) -> Verbalized:
    """A tiny OPT whose every part matters: no bias is 0, no norm's weight 1, and attention is not uniform."""
    module = answers("opt", **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=1.2 / module.module.config.hidden_size**0.5)
    return module


def ragged(lengths: list[int], *, seed: int = 0) -> Tensor:
    """Prompts of these lengths, left padded; one column more than the longest."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths) + 1), PAD)
    for row, length in zip(ids, lengths, strict=True):
        row[-length:] = torch.randint(3, V, (length,), generator=generator)
    return ids


def objective(
    module: Verbalized, ids: Tensor, *, batch: int | None = None, loss: Any = cross_entropy
) -> ModuleObjective:
    n = len(ids)
    batches = EpochBatches(n, batch or n, (0,), ascending=True)
    return ModuleObjective(module, Layout.of(module), loss, ids, torch.arange(n) % len(module.verbalizers), batches)


def line(module: Verbalized, distribution: Distribution = Distribution.GAUSSIAN) -> Line:
    x = Layout.of(module).flatten(module)
    return Line(Replica(x, Sgd()), 5, in_dimension(distribution, x.numel()))


def gap(ids: Tensor, module: Verbalized | None = None) -> float:
    """How far the fused loss is from the model's own in float64, relative to it."""
    module = lively() if module is None else module
    task = objective(module, ids)
    network = OptNetwork(module, task.layout)
    x = task.layout.flatten(module)
    found = network.losses(x, network.prompts(ids), task.targets.numpy(), network.workspace())
    wide = deepcopy(module).double()
    with torch.no_grad():
        wanted = torch.stack([cross_entropy(wide(ids[i : i + 1])[0], task.targets[i]) for i in range(len(ids))])
    return float(np.abs(found / wanted.numpy() - 1).max())


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 39), min_size=1, max_size=30),
    st.sampled_from([(16, 2), (32, 4), (48, 4), (64, 2), (48, 1)]),
    st.integers(1, 3),
    st.integers(0, 10),
)
def test_losses_are_the_models_own_for_prompts_of_any_lengths(
    lengths: list[int], shape: tuple[int, int], depth: int, seed: int
) -> None:
    """Attention with heads of 8, 12, 16, 32 and 48 channels; more tokens than go through a layer at once."""
    width, heads = shape
    module = lively(width=width, depth=depth, heads=heads)
    assert gap(ragged(lengths, seed=seed), module) < 1e-5


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=20),
    st.sampled_from([forward, central]),
    st.integers(1, 4),
    st.sampled_from(Distribution),
)
def test_scalars_are_those_of_the_serial_engine_to_rounding(
    lengths: list[int], estimator: Any, P: int, distribution: Distribution
) -> None:
    module = answers("opt")
    task, at = objective(module, ragged(lengths), batch=8), line(module, distribution)
    points = estimator.points(P, MU)
    fused, serial = (engine.losses(at, points, [(task, 0)])[0] for engine in (Fused(), Serial()))
    assert np.abs(fused - serial).max() < TOLERANCE * serial.mean()
    g, wanted = (estimator.combine(values, np.empty(0), MU).g for values in (fused, serial))
    assert np.abs(g - wanted).max() < 2 * TOLERANCE * serial.mean() / MU


def test_a_prompt_may_be_longer_than_what_goes_through_a_layer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own function, so that the kernel's constant can be changed."""
    monkeypatch.setattr(kernel, "TOKENS", 20)
    monkeypatch.setattr(kernel, "_losses", kernel._losses.py_func)
    assert gap(ragged([39, 1, 18, 2, 17, 1])) < 1e-5


def test_a_prompts_loss_does_not_depend_on_the_rest_of_the_batch() -> None:
    module, ids = lively(), ragged([3, 39, 11, 28, 39, 39, 39, 39, 5])
    task = objective(module, ids)
    network, x = OptNetwork(module, task.layout), task.layout.flatten(module)
    targets, memory = task.targets.numpy(), network.workspace()
    together = network.losses(x, network.prompts(ids), targets, memory)
    for i in range(len(ids)):
        alone = network.losses(x, network.prompts(ids[i : i + 1]), targets[i : i + 1], memory)
        assert alone[0] == together[i]


def test_untied_output_embeddings_and_three_classes() -> None:
    module = Verbalized(tiny("opt", tied=False), (7, 30, 8), PAD)
    assert "module.lm_head.weight" in Layout.of(module).names
    assert gap(ragged([5, 9, 2]), module) < 1e-5
    with torch.no_grad():
        module.get_parameter("module.lm_head.weight").add_(0.1 * torch.randn(V, 16))
    assert gap(ragged([5, 9, 2]), module) < 1e-5


def test_the_losses_are_the_same_bits_for_any_number_of_threads() -> None:
    module = lively()
    tasks = [(objective(module, prompts(9, 12, seed=i)), 0) for i in range(3)]
    found = [Fused(workers).losses(line(module), central.points(3, MU), tasks) for workers in (1, 2, 5)]
    assert len(np.unique(found[0])) == found[0].size
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_clients_that_measure_together_reply_as_alone_and_rebuild_the_same_bits() -> None:
    module, rule = lively(), Momentum(0.9)
    x = Layout.of(module).flatten(module)
    together, alone = (
        [
            Client(
                i, Replica(x, rule), objective(module, prompts(9, 12, seed=i)), central, MU, engine=make_engine(name)
            )
            for i in range(3)
        ]
        for name in ("auto", "fused")
    )
    for client in together:
        client.engine = together[0].engine
    server = Server(M=3, m=2, K=1, P=Schedule(3), eta=Schedule(1e-2), seed=0, replica=Replica(x, rule))
    for _ in range(4):
        plans = server.plan_round()
        replies = handle_all([together[i] for i in plans], list(plans.values()))
        single = [alone[i].handle(plan) for i, plan in plans.items()]
        assert [reply.scalars.tobytes() for reply in replies] == [reply.scalars.tobytes() for reply in single]
        server.aggregate(replies)
    assert server.replica is not None
    for client in together:
        client.replica.catch_up(server.plan_round([client.id])[client.id].records)
        assert client.replica.digest() == server.replica.digest()
    assert not torch.equal(server.replica.x, x)


# Planted faults: a kernel of our own copy of the model, with one thing wrong.


def _positions_off_by_one(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    table = module.get_parameter("module.model.decoder.embed_positions.weight")
    table.data = table.data.roll(1, 0)
    return module, ids


def _padding_seen(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    module.pad = -1
    return module, ids


def _a_bias_dropped(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    module.get_parameter("module.model.decoder.layers.1.self_attn.v_proj.bias").data.zero_()
    return module, ids


def _keys_for_values(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    attention: Any = module.get_submodule("module.model.decoder.layers.0.self_attn")
    attention.k_proj, attention.v_proj = attention.v_proj, attention.k_proj
    return module, ids


def _other_verbalizer(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    module.verbalizers = (7, 31)
    return module, ids


def _one_token_short(module: Verbalized, ids: Tensor) -> tuple[Verbalized, Tensor]:
    return module, ids[:, :-1]


@pytest.mark.parametrize(
    "plant",
    [_positions_off_by_one, _padding_seen, _a_bias_dropped, _keys_for_values, _other_verbalizer, _one_token_short],
)
def test_the_tolerance_catches_planted_faults(plant: Callable[[Verbalized, Tensor], tuple[Verbalized, Tensor]]) -> None:
    ids = ragged([4, 9, 7])
    right = lively()
    wrong, seen = plant(deepcopy(right), ids)
    network = OptNetwork(wrong, Layout.of(wrong))
    x = Layout.of(wrong).flatten(wrong)
    found = network.losses(x, network.prompts(seen), np.arange(3) % 2, network.workspace())
    with torch.no_grad():
        wanted = cross_entropy(right.double()(ids), torch.arange(3) % 2, reduction="none")
    assert np.abs(found / wanted.numpy() - 1).max() > 1e-3


@pytest.mark.parametrize("name", ["embed_tokens", "layers.0.self_attn.k_proj", "layers.1.fc1", "final_layer_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_not_finite_has_no_finite_loss(name: str, value: float) -> None:
    module = lively()
    with torch.no_grad():
        module.get_parameter(f"module.model.decoder.{name}.weight")[:] = value
    network = OptNetwork(module, Layout.of(module))
    ids = ragged([4, 9, 7])
    x = Layout.of(module).flatten(module)
    assert not np.isfinite(network.losses(x, network.prompts(ids), np.zeros(3, int), network.workspace())).any()


# Who is asked.


def _same_as_serial(module: Verbalized, ids: Tensor) -> bool:
    task, at, points = objective(module, ids), line(module), forward.points(2, MU)
    found = make_engine("auto").losses(at, points, [(task, 0)])
    return np.array_equal(found, Serial().losses(at, points, [(task, 0)]))


def test_auto_is_fused_for_small_opt_models_and_serial_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    module, ids = lively(), ragged([4, 9, 7])
    assert not _same_as_serial(module, ids)
    monkeypatch.setattr(engines, "LARGE", Layout.of(module).d)
    assert not _same_as_serial(module, ids)
    monkeypatch.setattr(engines, "LARGE", Layout.of(module).d - 1)
    assert _same_as_serial(module, ids)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("opt-narrow", "do_layer_norm_before of the model must be True for the fused engine, got False"),
        ("llama", "model must be an OPT for the fused engine, got 'LlamaForCausalLM'"),
        ("gpt2", "model must be an OPT for the fused engine, got 'GPT2LMHeadModel'"),
    ],
)
def test_other_models_are_refused_by_name_and_left_to_serial_by_auto(kind: str, message: str) -> None:
    module, ids = answers(kind), ragged([4, 9, 7])
    assert _same_as_serial(module, ids)
    with pytest.raises(InputError, match=message):
        Fused().losses(line(module), forward.points(1, MU), [(objective(module, ids), 0)])


def test_adapters_frozen_parameters_and_other_widths_are_left_to_serial() -> None:
    adapted, frozen, narrow = lively(), lively(), answers("opt", width=24)
    lora_(adapted.module, rank=2, alpha=2, seed=0)
    frozen.get_parameter("module.model.decoder.final_layer_norm.bias").requires_grad_(False)
    for module, message in (
        (adapted, "parameters must all be trainable for the fused engine, got"),
        (frozen, r"got \['module.model.decoder.final_layer_norm.bias'\]"),
        (narrow, "hidden_size of the model must be a multiple of 16 for the fused engine, got 24"),
    ):
        ids = ragged([4, 9, 7])
        assert _same_as_serial(module, ids)
        with pytest.raises(InputError, match=message):
            Fused().losses(line(module), forward.points(1, MU), [(objective(module, ids), 0)])


@pytest.mark.parametrize("kind", [*ARCHITECTURES, "adapted"])
def test_batched_losses_and_gradients_of_language_models(kind: str) -> None:
    module = lively() if kind == "adapted" else answers(kind)
    if kind == "adapted":
        lora_(module.module, rank=2, alpha=2, seed=0)
    tasks = [(objective(module, ragged([4, 9, 7], seed=i)), 0) for i in range(2)]
    at, points = line(module), central.points(2, MU)
    with warnings.catch_warnings(action="error"):  # torch warns where it loops over the points
        found = Batched().losses(at, points, tasks)
    assert found == pytest.approx(Serial().losses(at, points, tasks), rel=4 * TOLERANCE)
    values, gradients = Batched().gradients([at.x, at.x], tasks)  # prompts are cut by their values: one at a time
    wanted, slopes = Serial().gradients([at.x, at.x], tasks)
    assert np.array_equal(values, wanted)
    assert torch.equal(gradients, slopes)


def test_prompts_that_the_kernel_cannot_take_are_refused() -> None:
    network = OptNetwork(answers("opt"), Layout.of(answers("opt")))
    for ids, message in (
        (torch.tensor([[5, 6, PAD]]), "prompts must be padded on the left for the fused engine"),
        (torch.full((1, 41), 5), "prompts must have at most 40 tokens, got 41"),
        (torch.tensor([[5, V]]), rf"tokens must be in 0..{V - 1}, got \(5, {V}\)"),
    ):
        with pytest.raises(InputError, match=message):
            network.prompts(ids)


def test_the_form_of_opt_that_the_kernel_computes_is_checked() -> None:
    library = transformers()
    shape = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 64, "num_hidden_layers": 1, "vocab_size": V}
    for change, message in (
        (
            {"activation_function": "gelu"},
            "activation_function of the model must be relu for the fused engine, got 'gelu'",
        ),
        ({"enable_bias": False}, "enable_bias of the model must be True for the fused engine, got False"),
        ({"ffn_dim": 40}, "ffn_dim of the model must be a multiple of 16 for the fused engine, got 40"),
    ):
        config = library.OPTConfig(**{**shape, **change}, num_attention_heads=2, pad_token_id=PAD)  # type: ignore[arg-type]
        module = Verbalized(library.OPTForCausalLM(config), (7, 30), PAD)
        with pytest.raises(InputError, match=message):
            OptNetwork(module, Layout.of(module))
