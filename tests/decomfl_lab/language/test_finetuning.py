"""Tasks in ``decomfl train``: what goes in, what is measured before and after, and what a run leaves."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from decomfl_lab.cli.main import main
from decomfl_lab.language.finetuning import task_dataset, task_module
from decomfl_lab.language.tasks import load_task
from decomfl_lab.objectives import evaluation
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, read_config
from decomfl_lab.runs.preparation import Materials, Prepared
from decomfl_lab.runs.run import Run, load_run
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.toy import PAD, ToyTokens, put_toy, toy_causal, write_sst2


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    put_toy(monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        task="sst2",
        task_data=str(write_sst2(tmp_path / "sst2")),
        model="toy",
        clients=4,
        sampled=2,
        perturbations=10,
        rounds=30,
        lr=0.05,
        mu=1e-3,
        momentum=0.0,
        batch_size=8,
        eval_every=10,
    )


def test_a_task_is_a_data_set_of_prompts_and_classes(config: TrainConfig) -> None:
    data, examples = task_dataset(config), load_task("sst2", folder=config.task_data)
    assert data.train_labels.tolist() == [c for _, c in examples.train]
    for ids, (prompt, _) in zip(data.train_images, examples.train, strict=True):
        assert ids[ids != PAD].tolist() == ToyTokens().encode(prompt)
        assert ids[-1] == ToyTokens().encode("was")[-1]
    assert data.test_labels.tolist() == [c for _, c in examples.test]
    assert data.test_images.shape == (20, data.train_images.shape[1])
    assert data.content_free is not None
    assert data.content_free.tolist() == [ToyTokens().encode("N/A It was")]
    assert data.source.startswith("SST-2: 80 train / 20 test examples, from sst2")


def test_an_evaluation_is_of_all_examples_in_order_of_length(config: TrainConfig, plant: Any) -> None:
    seen: list[tuple[Tensor, Tensor, int | None]] = []
    plant(evaluation, "mean_losses", lambda right, *of, **named: seen.append(of[2:]) or right(*of, **named))
    data = task_dataset(config)
    Run(replace(config, rounds=1), dataset=data).train()
    for ids, classes, _ in seen:
        lengths = (ids != PAD).sum(1)
        assert torch.equal(lengths, lengths.sort().values)
        assert len(set(lengths.tolist())) > 1
        tested, wanted = (
            sorted((*row.tolist(), int(c)) for row, c in zip(*part, strict=True))
            for part in ((ids, classes), (data.test_images, data.test_labels))
        )
        assert tested == wanted
    Run(replace(config, rounds=1, test_examples=7), dataset=data).train()
    assert [len(classes) for _, classes, _ in seen] == [20, 20, 7, 7]


def test_the_module_gives_the_logits_of_the_verbalizers(config: TrainConfig) -> None:
    module, ids = task_module(config), task_dataset(config).train_images[:5]
    causal = toy_causal().module
    words = [ToyTokens().encode(word)[-1] for word in (" bad", " good")]
    expected = causal(ids, attention_mask=(ids != PAD).long()).logits[:, -1, words]
    torch.testing.assert_close(module(ids), expected)


def test_the_first_row_is_the_model_as_it_came(config: TrainConfig) -> None:
    told: list[dict[str, float]] = []
    rows = Run(config).train(on_start=told.append)
    data, module = task_dataset(config), task_module(config)
    assert data.content_free is not None
    with torch.no_grad():
        chances = module(data.test_images).softmax(1)
        odds = chances / module(data.content_free).softmax(1)

    def share(scores: Tensor) -> float:
        return float(np.mean([int(row.argmax()) == c for row, c in zip(scores, data.test_labels, strict=True)]))

    assert rows["round"].tolist() == [0, 10, 20, 30]
    first = rows.iloc[0]
    assert first["test_accuracy"] == pytest.approx(share(chances))
    assert first["calibrated_accuracy"] == pytest.approx(share(odds))
    assert share(odds) != share(chances)
    assert np.isnan(first["train_loss"])
    assert first["wire_bytes"] == 0
    assert [row["test_accuracy"] for row in told] == [first["test_accuracy"]]


def test_decomfl_learns_a_task(config: TrainConfig) -> None:
    data = Materials(config).dataset()
    longer = replace(config, rounds=100, eval_every=100, server_model=True)
    rows = Run(longer, dataset=data).train()
    assert rows["test_accuracy"].iloc[-1] > rows["test_accuracy"].iloc[0] + 0.2
    assert rows["test_loss"].iloc[-1] < rows["test_loss"].iloc[0]
    layout = Prepared.of(config, data).layout
    assert layout.d == sum(p.numel() for p in task_module(config).parameters())


@pytest.mark.parametrize(
    "flags", [{"method": "fedavg"}, {"method": "fedzo"}, {"lean": True}, {"precision": "bfloat16"}]
)
def test_other_methods_and_variants_take_tasks_too(config: TrainConfig, flags: dict[str, object]) -> None:
    rows = Run(replace(config, rounds=2, eval_every=2, **flags)).train()  # type: ignore[arg-type]
    assert rows["round"].tolist() == [0, 2]
    assert rows["test_loss"].nunique() == 2


def test_a_run_resumes_and_can_be_loaded(config: TrainConfig, tmp_path: Path) -> None:
    whole = Run(config).train()
    out = tmp_path / "run"
    Run(replace(config, rounds=10)).train(out=out)
    told: list[dict[str, float]] = []
    resumed = Run(config).train(out=out, on_start=told.append)
    pd.testing.assert_frame_equal(whole.drop(columns="seconds"), resumed.drop(columns="seconds"))
    assert told[0]["test_accuracy"] == whole["test_accuracy"].iloc[0]
    read = load_run(out)
    assert read.config == config
    data = read.dataset
    hits = read.model(data.test_images).argmax(1) == data.test_labels
    assert float(hits.double().mean()) == pytest.approx(whole["test_accuracy"].iloc[-1])


@refuses(*rows_of(__file__)["refused"])
def test_options_that_do_not_go_together_are_refused(values: dict[str, object]) -> None:
    TrainConfig(**values)  # type: ignore[arg-type]


def test_a_tasks_configuration_names_no_other_data(config: TrainConfig, tmp_path: Path) -> None:
    assert "data" not in config.to_dict()
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert config_from_mapping(read_config(tmp_path / "c.toml"), "c.toml") == config
    assert TrainConfig().to_dict()["data"] == "mnist"


def test_the_command_tells_what_the_model_can_do_untrained(
    config: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        f"--{name.replace('_', '-')}={getattr(config, name)}"
        for name in ("task", "task_data", "model", "clients", "sampled", "perturbations", "lr", "mu", "batch_size")
    ]
    assert main(["train", *flags, "--rounds", "2", "--momentum", "0", "--json"]) == 0
    out, err = capsys.readouterr()
    first, last = json.loads(out)["metrics"]
    assert first["round"] == 0
    assert first["train_loss"] is None
    assert last["train_loss"] > 0
    assert err.startswith(
        f"zero-shot accuracy {first['test_accuracy']:.4f}, calibrated {first['calibrated_accuracy']:.4f}"
    )
    assert json.loads(out)["rebuilt"] == {"clients": config.clients, "equal": config.clients}
    assert main(["train", *flags, "--rounds", "2", "--momentum", "0"]) == 0
    out = capsys.readouterr().out
    assert "calibrated_accuracy" in out
    zero, now = first["test_accuracy"], last["test_accuracy"]
    assert f"accuracy: {zero:.4f} zero-shot, {now:.4f} now ({100 * (now - zero):+.1f} points)" in out
    assert f"wire: {last['wire_bytes'] / config.clients / 1000:,.2f} kB a client" in out
    assert f"rebuilt: {config.clients} of {config.clients} clients" in out
