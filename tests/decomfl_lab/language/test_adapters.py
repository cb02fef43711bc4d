"""Adapters: the model begins as it was, only what is said to be trained moves, and replicas of it agree to the bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.language.adapters import AdaptedLinear, lora_, norms_
from decomfl_lab.models.initialisers import uniform
from decomfl_lab.models.registry import num_parameters
from decomfl_lab.runs.run import load_run
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.tiny import answers, prompts, save_opt, transformers
from tests.decomfl_lab.language.toy import write_sst2

METHODS: dict[str, Callable[[nn.Module], None]] = {"lora": lambda module: lora_(module, rank=3), "norms": norms_}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["opt", "opt-narrow", "llama"])
def test_the_model_begins_as_it_was(kind: str, method: str) -> None:
    module, ids = answers(kind), prompts(4, 8)
    before = module(ids)
    METHODS[method](module)
    assert torch.equal(module(ids), before)


def test_an_update_is_the_product_of_its_factors() -> None:
    layer = nn.Linear(5, 7)
    u, A, B = torch.randn(4, 5), torch.randn(2, 5), torch.randn(7, 2)
    adapted = AdaptedLinear(layer, A, 1.5)
    with torch.no_grad():
        adapted.B.copy_(B)
    whole = nn.functional.linear(u, layer.weight + 1.5 * B @ A, layer.bias)
    assert torch.allclose(adapted(u), whole, rtol=1e-4, atol=1e-5)


def _layers() -> nn.ModuleDict:
    return nn.ModuleDict({"q_proj": nn.Linear(6, 4), "v_proj": nn.Linear(5, 4)})


def test_factors_come_from_the_stream_on_every_machine() -> None:
    module = _layers()
    lora_(module, rank=2, seed=9)
    first, second = (module.get_parameter(f"{name}.A").detach() for name in ("q_proj", "v_proj"))
    assert torch.equal(first.reshape(-1), torch.from_numpy(uniform(6**-0.5).elements(9, 0, 12)))
    assert torch.equal(second.reshape(-1), torch.from_numpy(uniform(5**-0.5).elements(9, 2, 10)))  # tensor 1 is B
    assert not module.get_parameter("q_proj.B").any()


def test_factors_of_earlier_versions_come_from_numpy() -> None:
    module = _layers()
    lora_(module, rank=2, seed=9, draws="libraries")
    rng = np.random.default_rng(np.random.SeedSequence(9, spawn_key=(1,)))
    expected = torch.from_numpy(rng.uniform(-(5**-0.5), 5**-0.5, (2, 5))).float()
    assert torch.equal(module.get_parameter("v_proj.A"), expected)


def test_of_opt_125m_the_papers_294912_parameters_are_trained() -> None:
    library = transformers()
    with torch.device("meta"):
        model = library.OPTForCausalLM(library.OPTConfig())
    assert num_parameters(model) == 125_239_296
    lora_(model)
    assert num_parameters(model) == 294_912


def trained(module: nn.Module, **options: Any) -> lab.Run:
    """Three clients with six prompts each."""
    ids = [prompts(6, 9, seed=i) for i in range(3)]
    clients = [(own, own[:, -1] % 2) for own in ids]
    fixed = {"sampled": 2, "rounds": 4, "local_steps": 2, "perturbations": 2, "batch_size": 4, "lr": 1e-2}
    return lab.train(module, cross_entropy, clients, **fixed | options)


@pytest.mark.parametrize("options", [{}, {"precision": "bfloat16", "momentum": 0.0}], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_only_the_adapters_move_and_replicas_agree_to_the_bit(method: str, options: dict[str, Any]) -> None:
    module = answers("opt")
    METHODS[method](module)
    run = trained(module, **options)
    assert run.config.rounds == 4
    assert run.verify()
    for name, p in module.named_parameters():
        assert torch.equal(run.model.get_parameter(name), p) == (not p.requires_grad)


def test_a_layer_at_a_time_measures_what_the_whole_point_does() -> None:
    losses = []
    for lean in (False, True):
        module = answers("llama")
        lora_(module, rank=2)
        losses.append(trained(module, lean=lean, eval_every=1).metrics.train_loss.dropna().to_numpy())
    assert np.allclose(*losses, rtol=0, atol=2e-4)


@refuses(*rows_of(__file__)["refused"])
def test_what_does_not_fit_is_named(options: dict[str, object]) -> None:
    module = answers("opt")
    lora_(module, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("flags", "d"), rows_of(__file__)["trained"])
def test_the_command_trains_what_it_is_told_to(
    flags: list[str], d: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = tmp_path / "run", str(save_opt(tmp_path / "tiny-opt"))
    arguments = ["--task", "sst2", "--task-data", str(write_sst2(tmp_path / "sst2")), "--model", model]
    arguments += ["--clients", "4", "--sampled", "2", "--rounds", "3", "--perturbations", "2", "--local-steps", "2"]
    assert main(["train", *arguments, "--lr", "0.1", "--out", str(out), "--json", *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "tiny-opt: opt, d = 8,816, from a folder, digest " in result["provenance"]["data"]
    rows = result["metrics"]
    assert [row["round"] for row in rows] == [0, 3]
    assert rows[0]["test_loss"] != rows[1]["test_loss"]
    assert num_parameters(load_run(out).model) == d
