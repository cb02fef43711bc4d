"""The fused engine on language models: losses of the model itself, whatever the prompts, and serial where it cannot."""

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab import InputError, Sgd
from decomfl_lab.engines.base import Line, Serial
from decomfl_lab.engines.kernels import language as kernel
from decomfl_lab.engines.kernels.engine import Fused
from decomfl_lab.engines.kernels.language import LanguageNetwork
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.engines.vmap import Batched
from decomfl_lab.estimators.differences import central, forward
from decomfl_lab.language.adapters import lora_
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.replicas.replica import Replica
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.tiny import ARCHITECTURES, PAD, V, answers, prompts, tiny, transformers

KINDS = ("opt", "llama")
MU = 1e-3
TOLERANCE = 2.0**-22
"""Of a loss around 0.7: a few of its roundings to float32. A scalar is two of these apart over 2μ, 2.4e-4 at most."""


SHAPES = [
    *(("opt", *shape, 0) for shape in [(16, 2), (32, 4), (48, 4), (64, 2), (48, 1)]),
    *(("llama", *shape) for shape in [(32, 4, 2), (32, 4, 4), (48, 3, 1), (96, 6, 2), (64, 2, 1), (64, 1, 1)]),
]
"""Architecture, width, heads and heads of keys, so that heads have 8 to 64 channels and groups 1 to 3 queries."""


def lively(kind: str = "opt", **options: Any) -> Verbalized:
    """A tiny model whose every part matters: no bias is 0, no norm's weight 1, and attention is not uniform."""
    module = answers(kind, **({"width": 32} if kind == "llama" else {}) | options)
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
    return Line(Replica(x, Sgd()), 5, distribution)


def fused(module: Verbalized, ids: Tensor, targets: Any, x: Tensor | None = None) -> NDArray[np.float64]:
    """The kernels' loss of each prompt, at the module's own parameters or at x."""
    network = LanguageNetwork(module, Layout.of(module))
    x = Layout.of(module).flatten(module) if x is None else x

    def form(parts: Sequence[Tensor], first: int) -> None:
        parts[0].copy_(x[first : first + len(parts[0])])

    return network.losses(form, 1, network.prompts(ids), np.asarray(targets), network.workspace())[0]


def gap(ids: Tensor, module: Verbalized | None = None) -> float:
    """How far the fused loss is from the model's own in float64, relative to it."""
    module = lively() if module is None else module
    task = objective(module, ids)
    found = fused(module, ids, task.targets)
    wide = deepcopy(module).double()
    with torch.no_grad():
        wanted = torch.stack([cross_entropy(wide(ids[i : i + 1])[0], task.targets[i]) for i in range(len(ids))])
    return float(np.abs(found / wanted.numpy() - 1).max())


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 39), min_size=1, max_size=30),
    st.sampled_from(SHAPES),
    st.integers(1, 3),
    st.integers(0, 10),
)
def test_losses_are_the_models_own_for_prompts_of_any_lengths(
    lengths: list[int], shape: tuple[str, int, int, int], depth: int, seed: int
) -> None:
    kind, width, heads, keys = shape
    module = lively(kind, width=width, depth=depth, heads=heads, keys=keys)
    assert gap(ragged(lengths, seed=seed), module) < 1e-5


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=20),
    st.sampled_from([forward, central]),
    st.integers(1, 4),
    st.sampled_from(Distribution),
    st.sampled_from(KINDS),
)
def test_scalars_are_those_of_the_serial_engine_to_rounding(
    lengths: list[int], estimator: Any, P: int, distribution: Distribution, kind: str
) -> None:
    module = answers(kind, width=32)
    task, at = objective(module, ragged(lengths), batch=8), line(module, distribution)
    points = estimator.points(P, MU)
    own, serial = (engine.losses(at, points, [(task, 0)])[0] for engine in (Fused(), Serial()))
    assert np.abs(own - serial).max() < TOLERANCE * serial.mean()
    g, wanted = (estimator.combine(values, np.empty(0), MU).g for values in (own, serial))
    assert np.abs(g - wanted).max() < 2 * TOLERANCE * serial.mean() / MU


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompts_loss_does_not_depend_on_the_rest_of_the_batch(kind: str) -> None:
    module, ids = lively(kind), ragged([3, 39, 11, 28, 39, 39, 39, 39, 5])
    together = fused(module, ids, np.zeros(9, int))
    alone = [fused(module, ids[i : i + 1], [0])[0] for i in range(9)]
    assert np.array_equal(alone, together)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_point_only_the_rows_that_are_read_and_the_layers_are_formed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, ids = lively(kind), ragged([4, 9, 7])
    layout, prefix = Layout.of(module), "module.model.decoder." if kind == "opt" else "module.model."
    x, at = layout.flatten(module), dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
    wanted = fused(module, ids, [0, 1, 0])
    monkeypatch.setattr(kernel, "AHEAD", 1)
    assert np.array_equal(fused(module, ids, [0, 1, 0]), wanted)
    width, table = module.module.config.hidden_size, at[prefix + "embed_tokens.weight"]
    unread = set(range(V)) - set(ids[ids != PAD].tolist()) - set(module.verbalizers)
    formed: list[int] = []

    def form(parts: Sequence[Tensor], first: int) -> None:
        formed.extend(range(first, first + len(parts[0])))
        parts[0].copy_(x[first : first + len(parts[0])])

    network = LanguageNetwork(module, layout)
    network.losses(form, 1, network.prompts(ids), np.array([0, 1, 0]), network.workspace())
    assert not {table + row * width + i for row in unread for i in range(width)} & {*formed}
    assert {at[f"{prefix}layers.0.{part}.weight"] for part in network.architecture.linears} <= {*formed}


def test_samples_of_several_models_are_measured_as_alone() -> None:
    module = lively()
    tasks = [
        (objective(own, ragged(lengths)), 0) for own, lengths in ((module, [5, 2]), (lively(), [3]), (module, [4]))
    ]
    at, points = line(module), central.points(2, MU)
    alone = [Fused(2).losses(at, points, [task])[0] for task in tasks]
    assert np.array_equal(Fused(2).losses(at, points, tasks), alone)


@pytest.mark.parametrize("kind", ["opt", "llama-untied"])
def test_untied_output_embeddings_and_three_classes(kind: str) -> None:
    module = Verbalized(tiny(kind, tied=False), (7, 30, 8), PAD)
    assert "module.lm_head.weight" in Layout.of(module).names
    assert gap(ragged([5, 9, 2]), module) < 1e-5
    with torch.no_grad():
        module.get_parameter("module.lm_head.weight").add_(0.1 * torch.randn(V, 16))
    assert gap(ragged([5, 9, 2]), module) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_the_same_bits_for_any_number_of_threads(kind: str) -> None:
    module = lively(kind)
    tasks = [(objective(module, prompts(9, 12, seed=i)), 0) for i in range(3)]
    found = [Fused(workers).losses(line(module), central.points(3, MU), tasks) for workers in (1, 2, 5)]
    assert len(np.unique(found[0])) == found[0].size
    assert all(np.array_equal(found[0], other) for other in found[1:])


# Planted faults: a kernel of our own copy of the model, with one thing wrong; or the prompts that it is given instead.

Plant = Callable[[Any, Tensor], Tensor | None]


def parameter(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    def plant(module: Any, ids: Tensor) -> None:
        own = module.get_parameter(f"module.model.{name}")
        own.data = change(own.data)

    return plant


def exchanged(part: str, one: str, other: str) -> Plant:
    def plant(module: Any, ids: Tensor) -> None:
        own = module.get_submodule(f"module.model.{part}")
        first, second = getattr(own, one), getattr(own, other)
        setattr(own, one, second)
        setattr(own, other, first)

    return plant


def angles(module: Any, ids: Tensor) -> None:
    rotary = module.get_submodule("module.model.rotary_emb")
    rotary.inv_freq = rotary.inv_freq * 1.1


def neighbours(module: Any, ids: Tensor) -> None:
    order = torch.arange(16).view(8, 2).T.reshape(-1)
    for part in ("q_proj", "k_proj"):
        in_pairs = parameter(
            f"layers.0.self_attn.{part}.weight", lambda w: w.view(-1, 16, 32)[:, order].reshape(-1, 32)
        )
        in_pairs(module, ids)


OF_BOTH: dict[str, Plant] = {
    "padding seen": lambda module, ids: setattr(module, "pad", -1),
    "another verbalizer": lambda module, ids: setattr(module, "verbalizers", (7, 31)),
    "one token short": lambda module, ids: ids[:, :-1],
}
FAULTS: dict[str, dict[str, Plant]] = {
    "opt": OF_BOTH | {
        "positions off by one": parameter("decoder.embed_positions.weight", lambda w: w.roll(1, 0)),
        "a bias dropped": parameter("decoder.layers.1.self_attn.v_proj.bias", torch.zeros_like),
        "keys for values": exchanged("decoder.layers.0.self_attn", "k_proj", "v_proj"),
    },
    "llama": OF_BOTH | {
        "other angles": angles,
        "channels paired as neighbours": neighbours,
        "queries in another group": parameter("layers.0.self_attn.v_proj.weight", lambda w: w.roll(16, 0)),
        "gate for up": exchanged("layers.1.mlp", "gate_proj", "up_proj"),
        "a gain dropped": parameter("layers.1.input_layernorm.weight", torch.ones_like),
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, faults in FAULTS.items() for fault in faults])
def test_the_tolerance_catches_planted_faults(kind: str, fault: str) -> None:
    ids = ragged([4, 9, 7])
    right = lively(kind, **({"width": 32, "heads": 2} if kind == "opt" else {"heads": 4, "keys": 2, "width": 64}))
    wrong = deepcopy(right)
    seen = FAULTS[kind][fault](wrong, ids)
    found = fused(wrong, ids if seen is None else seen, np.arange(3) % 2)
    with torch.no_grad():
        wanted = cross_entropy(right.double()(ids), torch.arange(3) % 2, reduction="none")
    assert np.abs(found / wanted.numpy() - 1).max() > 1e-3


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("opt", f"decoder.{name}") for name in ("embed_tokens", "layers.0.self_attn.k_proj", "final_layer_norm")),
        *(("llama", name) for name in ("embed_tokens", "layers.0.self_attn.k_proj", "layers.1.mlp.gate_proj", "norm")),
        ("opt", "decoder.layers.1.fc1"),
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_not_finite_has_no_finite_loss(kind: str, name: str, value: float) -> None:
    module = lively(kind)
    with torch.no_grad():
        module.get_parameter(f"module.model.{name}.weight")[:] = value
    assert not np.isfinite(fused(module, ragged([4, 9, 7]), np.zeros(3, int))).any()


# Who is asked.


def _same_as_serial(module: Verbalized, ids: Tensor) -> bool:
    task, at, points = objective(module, ids), line(module), forward.points(2, MU)
    found = make_engine("auto").losses(at, points, [(task, 0)])
    return np.array_equal(found, Serial().losses(at, points, [(task, 0)]))


@pytest.mark.parametrize("kind", KINDS)
def test_auto_is_fused_for_models_that_it_covers(kind: str) -> None:
    assert not _same_as_serial(lively(kind), ragged([4, 9, 7]))


@refuses(*rows_of(__file__)["others"])
def test_other_models_are_refused_by_name_and_left_to_serial_by_auto(kind: str) -> None:
    module, ids = answers(kind), ragged([4, 9, 7])
    assert _same_as_serial(module, ids)
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
    network = LanguageNetwork(answers("opt"), Layout.of(answers("opt")))
    for ids, message in (
        (torch.tensor([[5, 6, PAD]]), "prompts must be padded on the left for the fused engine"),
        (torch.full((1, 41), 5), "prompts must have at most 40 tokens, got 41"),
        (torch.tensor([[5, V]]), rf"tokens must be in 0..{V - 1}, got \(5, {V}\)"),
    ):
        with pytest.raises(InputError, match=message):
            network.prompts(ids)


SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": V, "pad_token_id": PAD}


@refuses(*rows_of(__file__)["refused"])
def test_the_forms_of_models_that_the_kernels_compute_are_checked(kind: str, change: dict[str, Any]) -> None:
    library, own = transformers(), {"word_embed_proj_dim": 32, "ffn_dim": 64} if kind == "OPT" else {}
    config = getattr(library, f"{kind}Config")(**{**SHAPE, "num_key_value_heads": 2, **own, **change})
    module = Verbalized(library.AutoModelForCausalLM.from_config(config), (7, 30), PAD)
    LanguageNetwork(module, Layout.of(module))
