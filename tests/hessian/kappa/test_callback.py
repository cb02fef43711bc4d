"""κ while a model is trained: it is that of the model then, and training goes on to the same bits."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import decomfl_lab as lab
import hessian
from decomfl_lab.errors import InputError
from hessian.kappa.callback import KappaEvery
from tests.decomfl_lab.language.tiny import tiny, transformers
from tests.nets import seeded
from tests.situations import zoo

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
CLIENTS = [(X[i::3], Y[i::3]) for i in range(3)]


def net() -> nn.Module:
    """With everything that a measurement could disturb: dropout, BatchNorm's buffers, one part in eval mode."""
    layers = zoo.layers(zoo.linear(6, 8), lambda: nn.BatchNorm1d(8), nn.Tanh, lambda: nn.Dropout(0.3), zoo.linear(8))
    made: nn.Module = seeded(layers, 1)
    made[2].eval()
    return made


def trained(watch: KappaEvery | None, loader: Any = None) -> list[Any]:
    """Everything that ten steps of SGD leave behind."""
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        optimizer.zero_grad()
        inputs, targets = next(iter(loader)) if loader is not None else (X, Y)
        cross_entropy(model(inputs), targets).backward()
        if watch is not None and step % watch.every == 0:
            watch.measure(model, step)
        optimizer.step()
    drawn = [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()]
    state = [tensor.tolist() for tensor in model.state_dict().values()]
    return [state, [p.grad.tolist() for p in model.parameters()], [part.training for part in model.modules()], drawn]


def test_a_loop_of_ones_own_goes_on_to_the_same_bits() -> None:
    rows: list[dict[str, float]] = []
    watch = KappaEvery(cross_entropy, (X, Y), every=3, report=rows.append, products=8)
    assert trained(watch) == trained(None)
    assert [step for step, _ in watch.history] == [row["step"] for row in rows] == [0, 3, 6, 9]
    assert rows[0]["kappa"] == watch.history[0][1].kappa
    assert rows[0]["kappa_low"] < rows[0]["kappa"] < rows[0]["kappa_high"]


def test_the_loader_that_trains_may_be_the_one_that_is_measured() -> None:
    def loader() -> DataLoader[Any]:
        seeded = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True, generator=seeded)

    one = loader()
    assert trained(KappaEvery(cross_entropy, one, every=2, products=8), one) == trained(None, loader())


def test_a_run_of_the_lab_is_watched_and_is_the_same_run(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return seeded(zoo.layers(zoo.linear(6, 8), nn.Tanh, zoo.linear(8)), 1)  # type: ignore[no-any-return]

    watch = KappaEvery(cross_entropy, (X, Y), every=2, products=8)
    run = lab.train(model(), cross_entropy, CLIENTS, rounds=5, eval_every=1, on_round=watch)
    alone = lab.train(model(), cross_entropy, CLIENTS, rounds=5, eval_every=1)
    assert torch.equal(run.federation.x, alone.federation.x)
    assert run.metrics.drop(columns="seconds").equals(alone.metrics.drop(columns="seconds"))
    assert [step for step, _ in watch.history] == [1, 2, 4]
    run.more(2, on_round=watch)
    assert watch.history[-1][0] == 6
    again = hessian.effective_rank(lab.train(model(), cross_entropy, CLIENTS, rounds=4).model, cross_entropy, (X, Y),
                                   products=8)  # fmt: skip
    assert watch.history[2][1].kappa == again.kappa


def test_what_cannot_be_measured_is_an_error_at_first_and_a_warning_later(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with pytest.raises(InputError, match="option of effective_rank must be .*, got 'product'"):
        KappaEvery(cross_entropy, (X, Y), product=8).measure(model, 0)
    watch = KappaEvery(cross_entropy, (X, Y), products=8)
    assert watch.measure(model, 0) is not None
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    assert watch.measure(model, 7) is None
    assert "κ at step 7 is not measured: loss" in caplog.text
    assert model.training
    assert len(watch.history) == 1


def fine_tuned(folder: Path, *watches: KappaEvery) -> tuple[dict[str, Tensor], Any]:
    """The weights that a Trainer of transformers leaves, and the Trainer."""
    library = transformers()
    pytest.importorskip("accelerate")
    model = tiny("opt")
    for part in model.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.1
    ids = torch.randint(3, 90, (24, 7), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = library.TrainingArguments(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=6, learning_rate=1e-3, report_to=[], seed=0,
        save_strategy="no", disable_tqdm=True, use_cpu=True, logging_steps=2,
    )  # fmt: skip
    callbacks = [watch.trainer_callback() for watch in watches]
    trainer = library.Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
    return {name: p.detach().clone() for name, p in model.named_parameters()}, trainer


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_transformers_is_watched_and_trains_to_the_same_bits(tmp_path: Path) -> None:
    ids = torch.randint(3, 90, (8, 7), generator=torch.Generator().manual_seed(1))
    watch = KappaEvery(None, [{"input_ids": ids, "labels": ids}], every=2, products=8)
    weights, trainer = fine_tuned(tmp_path, watch)
    alone, plain = fine_tuned(tmp_path)
    assert all(torch.equal(weights[name], alone[name]) for name in alone)
    rows = [row for row in trainer.state.log_history if "kappa" in row]
    assert [row["step"] for row in rows] == [step for step, _ in watch.history] == [0, 2, 4]
    losses = [[row["loss"] for row in each.state.log_history if "loss" in row] for each in (trainer, plain)]
    assert losses[0] == losses[1] != []


def test_other_processes_than_the_first_measure_nothing() -> None:
    library = transformers()
    watch = KappaEvery(cross_entropy, (X, Y), every=2, products=8)
    callback, state = watch.trainer_callback(), library.TrainerState(is_world_process_zero=False, global_step=2)
    callback.on_step_end(None, state, None, model=net())
    assert watch.history == []
    state.is_world_process_zero = True
    callback.on_step_end(None, state, None, model=net())
    assert [step for step, _ in watch.history] == [2]
    assert state.log_history[0]["kappa"] == watch.history[0][1].kappa
