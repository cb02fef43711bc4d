"""`decomfl runs` says of a folder what is so, `plot` draws it, and `export` writes what others can read."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import mse_loss

import decomfl_lab as lab
from decomfl_lab import DeComFL, TrainConfig
from decomfl_lab.cli.main import main
from decomfl_lab.cli.runs import SHOWN
from decomfl_lab.language.finetuning import task_module
from decomfl_lab.runs.folder import CHECKPOINT_FILE, found_runs, save_run
from decomfl_lab.runs.run import Run, load_run
from decomfl_lab.storage.files import held, is_held
from figures.command import curves_of
from tests.cases import refused, rows_of, sampled
from tests.decomfl_lab.language.tiny import save_opt
from tests.decomfl_lab.language.toy import write_sst2
from tests.decomfl_lab.test_files import holder

CONFIG = TrainConfig(
    DeComFL(perturbations=2), data="digits", model="logistic", clients=4, sampled=2, rounds=4, eval_every=2
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs that differ in K, one of them twice over by its seed."""
    folder = tmp_path_factory.mktemp("runs")
    for name, config in {"a": CONFIG, "b": CONFIG.but(local_steps=2), "c": CONFIG.but(seed=1)}.items():
        Run(config).train(out=folder / name)
    return folder


def _listed(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, object]]:
    assert main(["runs", str(folder), "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_a_run_is_listed_with_what_it_was_and_what_came_of_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = _listed(runs, capsys)[1]
    last = load_run(runs / "b").metrics.iloc[-1]
    assert (row["folder"], row["K"], row["P"], row["d"]) == (str(runs / "b"), 2, 2, 650)
    assert (row["rounds"], row["state"], row["kB/client"]) == (
        [4, 4],
        "finished",
        4 * last.wire_scalars / 1e3,
    )
    assert (row["accuracy"], row["loss"]) == pytest.approx((last.test_accuracy, last.test_loss), rel=1e-12)


def test_runs_are_sorted_by_a_column_and_shown_as_a_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["K"] for row in _listed(runs, capsys, "--sort", "K")] == [1, 1, 2]
    assert main(["runs", str(runs), "--sort", "accuracy"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:3] == ["folder", "method", "data"]
    assert len(out) == 4


def test_an_interrupted_a_damaged_and_a_foreign_folder_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("interrupted", "damaged", "bare"):
        Run(CONFIG).train(out=tmp_path / name)
    (tmp_path / "none").mkdir()
    longer = load_run(tmp_path / "interrupted")
    longer.config = longer.config.but(rounds=9)
    save_run(longer, tmp_path / "interrupted")  # as an interrupt leaves it
    path = tmp_path / "damaged" / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (tmp_path / "bare" / CHECKPOINT_FILE).unlink()
    found = {each.folder.name: each.state for each in found_runs([tmp_path])}
    assert found == {"bare": "no checkpoint", "damaged": "damaged", "interrupted": "interrupted"}
    assert main(["runs", str(tmp_path)]) == 0
    assert "damaged: checkpoint must be a whole file as it was written" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "content"), sampled(map(tuple, rows_of(__file__)["damaged"]), 2))
def test_damaged_files_are_listed_and_never_a_traceback(
    name: str, content: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("a", "b"):
        shutil.copytree(runs / each, tmp_path / "runs" / each)
    (tmp_path / "runs" / "a" / CHECKPOINT_FILE).unlink()
    (tmp_path / "runs" / "a" / name).write_text(content)
    for sort in SHOWN:
        rows = _listed(tmp_path / "runs", capsys, "--sort", sort)
        assert {row["folder"] for row in rows} == {str(tmp_path / "runs" / each) for each in ("a", "b")}
    assert main(["plot", str(tmp_path / "runs"), "--out", str(tmp_path / "c.svg")]) in (0, 2)


def test_a_report_that_is_being_made_is_no_run_and_hides_none(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, begun = tmp_path / "paper", tmp_path / "begun"
    shutil.copytree(runs, report / "runs")
    wanted = [row["folder"] for row in _listed(tmp_path, capsys)]
    assert wanted
    with held(report), held(report / "figures"):
        assert [row["folder"] for row in _listed(tmp_path, capsys)] == wanted
    with held(begun):
        assert [row["folder"] for row in _listed(tmp_path, capsys)] == [str(begun), *wanted]


def test_a_run_is_running_while_somebody_holds_its_folder(runs: Path) -> None:
    with holder("folder", runs / "a"), held(runs / "b"):
        found = {each.folder.name: each.state for each in found_runs([runs])}
        assert found == {"a": "running", "b": "running", "c": "finished"}
        assert [is_held(runs / name) for name in "abc"] == [True, True, False]
    assert {each.state for each in found_runs([runs])} == {"finished"}


@pytest.mark.parametrize(
    ("test", "flags", "said"),
    [
        (None, [], "runs must have held-out examples, of which their curves are, got 'none'"),
        (None, ["--y", "loss"], "runs must have held-out examples, of which their curves are, got 'none'"),
        (1.0, [], "y must be loss, as the runs have nothing else on held-out examples, got 'accuracy'"),
    ],
)
def test_a_curve_without_held_out_examples_is_refused_for_that(
    test: float | None, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(20, 3)
    held_out = None if test is None else (x, test * x[:, :1])
    lab.train(nn.Linear(3, 1), mse_loss, [(x, x[:, :1])], test=held_out, rounds=2, out=tmp_path / "run")
    capsys.readouterr()
    told = refused(capsys, "plot", str(tmp_path), "--out", str(tmp_path / "c.svg"), *flags)
    assert told == f"decomfl: error: {said}\n"


@pytest.mark.parametrize("flags", ["", "--x bytes --y loss", "--x scalars", "--x seconds"])
def test_curves_are_drawn_of_the_rows(flags: str, runs: Path, tmp_path: Path) -> None:
    from figures.runs import X, Y, run_curves

    assert main(["plot", str(runs), "--out", str(tmp_path / "c.svg"), *flags.split()]) == 0
    assert b"<svg" in (tmp_path / "c.svg").read_bytes()
    words = dict(zip(*[iter(flags.replace("--", "").split())] * 2, strict=True))
    frame = curves_of(found_runs([runs / "b"]))
    (line,) = run_curves(frame, **words).subfigs[0].axes[0].get_lines()
    expected = frame[[X[words.get("x", "rounds")][0], Y[words.get("y", "accuracy")][0]]]
    assert np.array_equal(line.get_xydata(), expected.to_numpy())


def test_exported_weights_are_the_models(runs: Path, tmp_path: Path) -> None:
    assert main(["export", str(runs / "a"), str(tmp_path / "m.safetensors")]) == 0
    own = load_run(runs / "a").model.state_dict()
    found = load_file(tmp_path / "m.safetensors")
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    assert main(["export", str(runs / "a"), str(tmp_path / "m")]) == 2
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("tune", sampled(["lora", "full"], 1))
def test_an_exported_language_model_is_read_by_transformers_and_answers_as_the_run_does(
    tune: str, tmp_path: Path
) -> None:
    model, data = str(save_opt(tmp_path / "opt")), str(write_sst2(tmp_path / "sst2"))
    own = {"task": "sst2", "task_data": data, "model": model, "tune": tune, "lora_rank": 2, "lr": 0.01, "mu": 1e-3}
    Run(CONFIG.but(**{**own, "data": "mnist"})).train(out=tmp_path / "run")
    argv = ["export", str(tmp_path / "run"), str(tmp_path / "mine")]
    assert main(argv) == 0
    run = load_run(tmp_path / "run")
    again = task_module(run.config.but(model=str(tmp_path / "mine"), tune="full"))
    ids = run.dataset.test_images
    torch.testing.assert_close(again(ids), run.model(ids))
    assert not torch.allclose(again(ids), task_module(run.config)(ids), atol=1e-5)  # it has learnt
    assert main(argv) == 2  # it is there already


def test_a_run_of_a_python_object_is_exported_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [(torch.randn(8, 3), torch.arange(8) % 2)] * 2
    lab.train(torch.nn.Linear(3, 2), torch.nn.functional.cross_entropy, pairs, rounds=1, out=tmp_path)
    told = refused(capsys, "export", str(tmp_path), str(tmp_path / "w.safetensors"))
    assert f"run = lab.load({str(tmp_path)!r}, model=model, clients=clients, test=test); safetensors.torch" in told
    assert told.count("\n") == 1
