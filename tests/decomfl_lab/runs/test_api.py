"""``decomfl_lab.train`` and ``load``: any module, any loss, clients of any kind."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import decomfl_lab as lab
from tests.decomfl_lab.runs import variants

PAIRS, OPTIONS = variants.PAIRS[:3], variants.OPTIONS | {"rounds": 6}
model = pytest.fixture(variants.net)


@dataclass(frozen=True, kw_only=True)
class Chatty(lab.DeComFL):
    """DeComFL whose formula forgets some bytes."""

    forgotten: float = lab.option(0.0, "The bytes.")

    def traffic(self, cohort: Any, d: int) -> Any:
        right = super().traffic(cohort, d)
        return replace(right, up_bytes=right.up_bytes - self.forgotten)


def test_what_models_would_have_cost_is_what_fedavg_sends() -> None:
    wide = nn.Linear(4, 3000)
    pairs = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(4)]
    sent = lab.train(wide, clients=pairs, method="fedavg", sampled=3, rounds=5).traffic
    assert (sent.up_bytes + sent.down_bytes) / 4 == pytest.approx(sent.models_bytes, rel=2e-3)
    assert "instead" not in str(sent)
    scalars = lab.train(wide, clients=pairs, sampled=3, rounds=5).traffic
    assert f"; the model both ways instead: {1e-3 * sent.models_bytes:,.1f} kB" in str(scalars)
    assert "instead" not in str(lab.train(wide, clients=pairs[:1], method="mezo", rounds=1).traffic)


def test_the_traffic_of_ones_own_method_is_that_of_the_ledger_and_a_wrong_formula_is_told(model: nn.Module) -> None:
    run = lab.train(model, clients=PAIRS, method=Chatty(forgotten=0.1), rounds=1)
    found = run.check_traffic()
    assert run.round == 1  # nothing has happened to it
    assert not found
    assert found.sent.up_bytes - found.said.up_bytes == pytest.approx(0.1)
    assert str(found).startswith("traffic: NOT as the formula says, 138.57 bytes up")


def test_a_run_of_other_data_or_without_its_model_is_refused(model: nn.Module, tmp_path: Path) -> None:
    lab.train(model, clients=PAIRS, out=tmp_path, **OPTIONS)
    with pytest.raises(lab.InputError, match="must be of the data available here"):
        lab.load(tmp_path, model, clients=PAIRS[:2])
    with pytest.raises(lab.InputError, match=r"model must have d = 47, as that of the run in .*, got 14$"):
        lab.load(tmp_path, nn.Linear(6, 2), clients=PAIRS)
    with pytest.raises(lab.InputError, match=r"folder must be one in which a run was saved, got '.*nix'$"):
        lab.load(tmp_path / "nix")
    again = (
        r"must be given again, as lab.load\('.*', model=model, clients=clients, test=test\): the run trained its user"
    )
    for what, missing in (("model", {"clients": PAIRS}), ("clients", {"model": model}), ("model and clients", {})):
        with pytest.raises(lab.InputError, match=f"^{what} {again}"):
            lab.load(tmp_path, **missing)  # type: ignore[arg-type]
    with pytest.raises(lab.InputError, match="only rounds may differ"):
        lab.train(model, clients=PAIRS, out=tmp_path, **OPTIONS | {"lr": 0.1})


def _absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.l1_loss(outputs, targets)


def test_a_run_keeps_its_loss(model: nn.Module, tmp_path: Path) -> None:
    clients = [(inputs, inputs[:, :2]) for inputs, _ in PAIRS]
    squares = lab.train(model, nn.functional.mse_loss, clients, test=clients[0], out=tmp_path / "a", **OPTIONS)
    again = lab.load(tmp_path / "a", model, clients=clients, test=clients[0])  # found again by its name
    assert again.metrics.test_loss.iloc[-1] == squares.metrics.test_loss.iloc[-1]
    again.more(3)
    assert again.metrics.test_loss.iloc[-1] < 1.2 * squares.metrics.test_loss.iloc[-1]
    with pytest.raises(lab.InputError, match=r"which differs in loss$"):
        lab.train(model, nn.functional.l1_loss, clients, test=clients[0], out=tmp_path / "a", **OPTIONS)
    with pytest.raises(lab.InputError, match=r"loss must be that of run .*torch.nn.functional:mse_loss, got .*l1_loss"):
        lab.load(tmp_path / "a", model, nn.functional.l1_loss, clients, test=clients[0])
    lab.train(model, lambda a, b: _absolute(a, b), clients, out=tmp_path / "b", **OPTIONS)
    with pytest.raises(lab.InputError, match="loss must be given again, as lab.load"):
        lab.load(tmp_path / "b", model, clients=clients)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_is_not_copied_by_python(copied: Callable[[Any], Any], model: nn.Module) -> None:
    run = lab.train(model, clients=PAIRS, **OPTIONS)
    with pytest.raises(lab.InputError, match=r"run must be kept by run\.save\(folder\) and read by lab\.load"):
        copied(run)
    assert torch.equal(copy.deepcopy(run.model)[0].weight, run.model[0].weight)


def errors(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float((outputs.argmax(1) != targets).sum())


def test_measures_of_ones_own_are_kept_with_the_run(model: nn.Module, tmp_path: Path) -> None:
    options = {"clients": PAIRS, "test": PAIRS[0]}
    whole = lab.train(model, metrics={"errors": errors}, out=tmp_path, **options, **OPTIONS).more(1)
    table = whole.metrics[["test_accuracy", "test_errors"]]
    n = len(PAIRS[0][1])
    assert table.test_errors.tolist() == pytest.approx((n - n * table.test_accuracy).tolist())
    assert whole.config.metrics == f"errors={__name__}:errors"
    again = lab.load(tmp_path, model, **options, trust_code=True)
    assert again.metrics.equals(whole.metrics)
    with pytest.raises(lab.InputError, match="must name no code"):
        lab.load(tmp_path, model, **options)
    with pytest.raises(lab.InputError, match=r"metrics must be \['errors'\], as in the run, got \['other'\]"):
        lab.load(tmp_path, model, **options, metrics={"other": errors})
    with pytest.raises(lab.InputError, match="only rounds may differ.*metrics"):
        lab.train(model, out=tmp_path, **options, **OPTIONS)


def test_a_measure_without_a_name_is_given_again(model: nn.Module, tmp_path: Path) -> None:
    options = {"clients": PAIRS, "test": PAIRS[0]}
    own = {"errors": lambda outputs, targets: errors(outputs, targets)}
    run = lab.train(model, metrics=own, out=tmp_path, **options, **OPTIONS)
    with pytest.raises(lab.InputError, match=r"^metrics must be given again, as lab.load\(.*, metrics=metrics"):
        lab.load(tmp_path, model, **options)
    assert lab.load(tmp_path, model, **options, metrics=own).more(1).metrics.test_errors.notna().all()
    (tmp_path / "checkpoint.safetensors").unlink()  # the log has it too
    assert (
        lab.train(model, metrics=own, out=tmp_path, **options, **OPTIONS | {"rounds": run.round + 1}).round
        == run.round + 1
    )
