"""``decomfl kappa``: numbers that agree with the dense Hessian, help that teaches, errors of one line."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, mse_loss

import decomfl_lab as lab
import hessian
from decomfl_lab.cli import main as cli
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.models.registry import build_model
from decomfl_lab.objectives.descent import Descent
from decomfl_lab.options import declared
from decomfl_lab.runs.run import load_run
from decomfl_lab.storage.tables import text_beside
from hessian.commands.kappa import KappaOptions
from hessian.operators.mean_loss import MeanLoss
from hessian.operators.options import CurvatureKeywords, CurvatureOptions
from hessian.trained_models import from_run, trained_here
from tests.cases import rows_of
from tests.decomfl_lab.language.tiny import save_opt
from tests.decomfl_lab.language.toy import write_sst2
from tests.hessian.problems import dense_hessian

SMALL = ["--data", "digits", "--model", "logistic", "--examples", "300", "--train-steps", "60"]


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["kappa", *argv, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line of an error, after lines of progress."""
    assert cli.main(["kappa", *argv]) == 2
    captured = capsys.readouterr()
    *progress, error = captured.err.splitlines()
    assert captured.out == ""
    assert all(line.startswith("training: 60/60") for line in progress)
    assert error.startswith("decomfl: error: ")
    return error


@pytest.fixture(scope="module")
def truth() -> np.ndarray[Any, Any]:
    trained = trained_here("logistic", "digits", steps=60, descent=Descent())
    chosen = fixed_choice(len(trained.dataset.train_labels), 300, 8)
    module, labels = trained.module.double(), trained.dataset.train_labels[chosen]
    images = trained.dataset.train_images[chosen].double()
    f = MeanLoss(module, cross_entropy, [(images, labels)])
    return torch.linalg.eigvalsh(dense_hessian(f, module, images, labels)).numpy()


def test_kappa_of_a_model_trained_here_is_the_dense_hessians(
    truth: np.ndarray[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(
        capsys, *SMALL, "--dtype", "float64", "--density-products", "60", "--split-sample", "--confidence", "0.999"
    )
    estimate = found["estimate"]
    low, high = estimate["interval"]
    assert low <= truth.sum() / truth[-1] <= high
    assert estimate["reached"]
    assert estimate["lambda_max"] == pytest.approx(truth[-1], rel=1e-3)
    assert (found["d"], found["examples"], found["dtype"]) == (650, 300, "float64")
    assert "8×8 digits" in found["data"]
    assert found["history"] == "60 steps of adam, lr 0.001, batch 64, seed 0"
    assert sum(found["density"]["weights"]) == pytest.approx(1.0)
    for value, below, above in found["density"]["kappas"].values():  # one value: the Hessian of a convex loss
        assert below <= truth.sum() / truth[-1] <= above
        assert value == pytest.approx(truth.sum() / truth[-1], rel=0.2)
    split = found["split_sample"]
    assert split["below"] < split["above"]
    assert all(0.5 * truth[-1] < value < 2 * truth[-1] for value in split["own"])


def test_a_table_by_layer_is_that_of_python_and_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--data", "digits", "--model", "mlp", "--examples", "200", "--train-steps", "20", "--rtol", "0.2"]
    found = run(capsys, *argv, "--by-layer", "--operator", "gauss-newton")["by_layer"]
    trained = trained_here("mlp", "digits", steps=20, descent=Descent())
    (objective,) = trained.mean_loss(examples=200)
    table = hessian.by_layer(objective, operator="gauss-newton", rtol=0.2)
    assert [row["layer"] for row in found["rows"]] == ["1", "3"] == [row.layer for row in table.rows]
    assert [row["rank"]["kappa"] for row in found["rows"]] == [row.rank.kappa for row in table.rows]
    drawn = tmp_path / "layers.png"
    assert cli.main(["kappa", *argv, "--by-layer", "--operator", "gauss-newton", "--plot", str(drawn)]) == 0
    assert str(table) in capsys.readouterr().out
    assert drawn.exists()


def test_a_run_of_train_is_measured_at_the_x_that_it_ended_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = "--data digits --model logistic --method fedavg --clients 4 --sampled 2 --rounds 5 --lr 0.05 --momentum 0"
    assert cli.main(["train", *argv.split(), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    loaded = load_run(out)
    config, dataset, module = loaded.config, loaded.dataset, loaded.model
    with torch.inference_mode():
        loss = float(cross_entropy(module(dataset.test_images), dataset.test_labels))
    assert f"{loss:.4g}" in printed  # the evaluation of the last round
    found = run(capsys, str(out), "--examples", "200")
    assert (found["model"], found["d"]) == ("logistic", 650)
    assert found["history"] == "fedavg, 5 rounds, seed 0 (run run)"
    again = run(capsys, str(out / "checkpoint.safetensors"), "--examples", "200")
    assert again["estimate"]["kappa"] == found["estimate"]["kappa"]
    (objective,) = from_run(out).mean_loss(examples=200)
    assert found["loss"] == pytest.approx(objective.value, rel=1e-6)
    assert config.rounds == 5


@pytest.mark.parametrize("model", ["logistic", "resnet8-half-bn"])
def test_weights_of_a_file_are_used(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without BatchNorm: whose statistics are the file's where it has them."""
    module = build_model(model, seed=5, in_shape=(1, 8, 8), classes=10)
    for name, buffer in module.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(4.0)
    path = tmp_path / "weights.safetensors"
    save_file(module.state_dict(), path)
    found = run(capsys, str(path), "--data", "digits", "--model", model, "--examples", "50", "--products", "8")
    dataset = load_dataset("digits")
    chosen = fixed_choice(len(dataset.train_labels), 50, 8)
    with torch.inference_mode():
        expected = cross_entropy(module.eval()(dataset.train_images[chosen]), dataset.train_labels[chosen])
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found["history"] == "weights of weights.safetensors"


@pytest.fixture
def no_data_are_read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr("hessian.trained_models.load_dataset", None)


def test_a_checkpoint_is_refined_and_that_of_another_seed_is_refused_before_any_data_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_data_are_read: Callable[[], None]
) -> None:
    file = tmp_path / "kappa.safetensors"
    coarse, fine = (run(capsys, *SMALL, "--rtol", rtol, "--checkpoint", str(file)) for rtol in ("0.2", "0.05"))
    assert fine["estimate"]["reached"]
    assert fine["estimate"]["products"] > coarse["estimate"]["products"]
    no_data_are_read()
    told = refused(capsys, *SMALL, "--seed", "1", "--checkpoint", str(file))
    assert "checkpoint must be of this run (seed differ)" in told


def test_the_table_names_every_reading_of_kappa_and_the_picture_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pictures" / "k.png"
    assert cli.main(["kappa", *SMALL, "--split-sample", "--plot", str(path)]) == 0
    out, err = capsys.readouterr()
    assert f"written to {path}\n" in err
    for word in (
        "\nκ ",
        "\nκ₊ ",
        "\nκ of |H| ",
        "tr(H)",
        "‖H‖₂",
        "λ_max",
        "λ_min",
        "κ of all data",
        "intervals of 95 %",
    ):
        assert word in out
    assert "spectral density of the hessian" in out  # a picture has one
    assert "logistic, 60 steps of adam, lr 0.001, batch 64, seed 0; cross-entropy 1." in out
    assert "Data: scikit-learn's 8×8 digits" in out
    assert path.stat().st_size > 10_000


def test_too_few_products_are_told_early_with_the_number_that_would_do(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    found = run(capsys, *SMALL, "--rtol", "0.002", "--max-products", "14")["estimate"]
    (told,) = [
        record.getMessage() for record in caplog.records if "--max-products 14 is not enough" in record.getMessage()
    ]
    assert int(told.split("about ")[1].split()[0]) > 14
    assert found["needed"] > 14
    caplog.clear()
    run(capsys, *SMALL, "--rtol", "0.2")
    assert not caplog.records


OWN = text_beside(__name__, "own_net.txt")
MINE = ["--model", "mine:net", "--data", "mine:loader", "--loss", "torch.nn.functional:mse_loss"]


@pytest.fixture
def _mine(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


@pytest.mark.usefixtures("_mine")
def test_a_users_own_model_data_and_loss_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, *MINE, "--examples", "0")
    mine = importlib.import_module("mine")
    kappa = hessian.effective_rank(mine.net().eval(), mse_loss, (mine.x, mine.x[:, :2]), seed=0)
    assert found["estimate"]["kappa"] == pytest.approx(kappa.kappa, rel=1e-5)  # the rows are in another order
    assert (found["model"], found["history"], found["examples"]) == ("mine:net", "as mine:net makes it", 90)
    assert (found["data"], found["loss_function"]) == ("90 examples of mine:loader", "mse-loss")
    few = run(capsys, *MINE, "--examples", "30", "--split-sample", "--loss", "torch.nn:HuberLoss")
    assert (few["examples"], few["loss_function"]) == (30, "HuberLoss")
    assert few["data_digest"] == found["data_digest"]


@pytest.mark.usefixtures("_mine")
def test_a_run_that_was_trained_in_python_on_its_users_own_gets_them_again(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(here)
    mine = importlib.import_module("mine")
    with monkeypatch.context() as patch:
        patch.setattr(mine.doubled, "__module__", "__main__")  # as in a script
        lab.train(mine.net().eval(), mine.doubled, mine.clients(), rounds=2, out=here / "run")
    again = ["run", "--model", "mine:net", "--data", "mine:clients"]
    assert run(capsys, *again, "--loss", "mine:doubled", "--products", "6")["loss_function"] == "doubled"
    told = refused(capsys, *again[:3])
    assert "--data module:function and --loss module:function must be given for run, which was" in told
    told = refused(capsys, *again, "--loss", "torch.nn:MSELoss")
    assert "loss must be that of run run, which is own doubled, got 'own MSELoss()'" in told


def test_a_model_that_diverged_or_has_no_curvature_has_no_kappa(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [*SMALL, "--lr", "1e30", "--products", "6"]
    assert "loss after training must be at most 10 times the 2.3" in refused(capsys, *argv)
    monkeypatch.setattr("hessian.trained_models.RISEN", float("inf"))
    assert cli.main(["kappa", *argv]) == 2
    captured = capsys.readouterr()
    assert "H is zero along every direction tried, so κ is undefined, at a loss of" in captured.err
    assert captured.out == ""


def test_a_language_model_is_measured_on_the_prompts_of_a_task_as_it_is_and_with_weights_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, files, run_of = save_opt(tmp_path / "opt"), write_sst2(tmp_path / "sst2"), tmp_path / "run"
    task = ["--task", "sst2", "--model", str(folder), "--task-data", str(files)]
    short = ["--examples", "4", "--products", "6"]
    found = run(capsys, *task, *short)
    assert (found["model"], found["history"]) == (str(folder), "as it is, on prompts of sst2")
    assert (found["examples"], found["loss_function"]) == (4, "cross-entropy")
    assert "model must be given with a task" in refused(capsys, "--task", "sst2")
    told = refused(capsys, *task, "--data", "digits")
    assert "data and loss must stay unset for a task, which has its own, got ['--data']" in told
    assert cli.main(["train", *task, "--clients", "2", "--sampled", "1", "--rounds", "2", "--out", str(run_of)]) == 0
    weights = tmp_path / "after.safetensors"
    assert cli.main(["replay", str(run_of), "--save", str(weights)]) == 0
    capsys.readouterr()
    after, left = run(capsys, str(weights), *task, *short), run(capsys, str(run_of), *short)
    assert (after["loss"], after["estimate"]["kappa"]) == (left["loss"], left["estimate"]["kappa"])
    assert after["history"] == "weights of after.safetensors"


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(("line", "message"), rows_of(__file__)["refused"])
def test_bad_input_is_one_line_before_any_data_are_read(
    line: str, message: str, capsys: pytest.CaptureFixture[str], no_data_are_read: Callable[[], None]
) -> None:
    words = {"SMALL": " ".join(SMALL), "MINE": " ".join(MINE), "FILE": __file__}
    if not any(part in message for part in ("images for", "diverged", "layer9")):  # what only the data tell
        no_data_are_read()
    assert message.format(**words) in refused(capsys, *line.format(**words).split())


def test_python_and_the_command_have_the_same_options_and_defaults() -> None:
    python = inspect.signature(hessian.effective_rank).parameters
    command = {name: option.default for name, option in declared(KappaOptions)}
    others = {"model", "data", "loss", "checkpoint", "trace"}  # named by a string there, an object in Python
    shared = {name for name in command if name in python} - others
    assert {"rtol", "max_products", "seed"} <= shared
    assert all(python[name].default == command[name] for name in shared)
    of_matrices = {name for name, _ in declared(CurvatureOptions)}
    assert of_matrices <= command.keys()
    assert CurvatureKeywords.__annotations__.keys() == of_matrices | {"weights", "redraw", "whiten", "d"}
