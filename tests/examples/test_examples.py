"""The examples run as they stand, are short, and what they print is so; ``decomfl.py`` has tests of its own."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab import laws
from decomfl_lab.cli.main import main
from decomfl_lab.language.causal_model import load_causal
from hessian import MeanLoss
from tests.decomfl_lab.language.tiny import transformers
from tests.docs.blocks import isolated, run_line
from tests.hessian.problems import dense_hessian, kappa_of

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGER = {"decomfl.py": 300, "verify_decomfl.py": 75}
"""The whole algorithm, and all parts of it under the laws."""


def printed(name: str, *words: str, folder: Path) -> str:
    """What an example prints when it is run in a folder."""
    with contextlib.redirect_stdout(io.StringIO()) as out, isolated(folder):
        assert run_line(["python", str(EXAMPLES / name), *words]) == 0
    return out.getvalue()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_has_hardly_more_than_forty_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGER.get(path.name, 42)


@pytest.mark.thorough
def test_the_kappa_of_the_example_has_an_interval_that_holds_that_of_the_dense_hessian_and_is_drawn(
    tmp_path: Path,
) -> None:
    shown = re.match(
        r"κ = ([\d.]+), 95 % interval ([\d.]+) \.\. ([\d.]+) \(\d+ products\)\n", printed("kappa.py", folder=tmp_path)
    )
    assert shown is not None
    kappa, low, high = map(float, shown.groups())
    assert low < kappa < high < 1.2 * low
    assert (tmp_path / "kappa.png").stat().st_size > 10_000
    example = runpy.run_path(str(EXAMPLES / "kappa.py"))
    with torch.random.fork_rng(devices=[]):
        module = example["trained"]().double()
        batches = list(example["loader"]())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    f = MeanLoss(module, cross_entropy, [(images.double(), labels)])
    assert low <= kappa_of(dense_hessian(f, module, images.double(), labels)) <= high


@pytest.mark.thorough
def test_one_liar_of_ten_ruins_the_mean_alone(tmp_path: Path) -> None:
    told = printed("liars.py", "digits", "80", folder=tmp_path)
    lines = re.findall(r"^(\w+)\(.*\), (nobody lies|one liar): accuracy ([\d.]+)$", told, re.M)
    found = {(rule, who): float(accuracy) for rule, who, accuracy in lines}
    honest = found["Mean", "nobody lies"]
    assert honest > 0.6
    assert found["Mean", "one liar"] < honest - 0.2
    assert min(found["Majority", who] for who in ("nobody lies", "one liar")) > honest - 0.2
    for rule in ("Median", "TrimmedMean", "ClippedMean"):
        assert min(found[rule, who] for who in ("nobody lies", "one liar")) > honest - 0.1, rule


def test_the_bound_of_ones_own_holds_and_the_one_without_rho_fails(tmp_path: Path) -> None:
    told = printed("my_bound.py", folder=tmp_path)
    answers = [line.rsplit(": ", 1)[1] for line in told.splitlines() if "ratio" in line]
    assert answers == ["holds", "fails"]


def test_a_client_of_ones_own_keeps_the_laws_that_it_is_tried_on() -> None:
    outcomes = laws.verify(runpy.run_path(str(EXAMPLES / "test_my_client.py"))["Mine"](), cases=3)
    assert outcomes.broken == []
    assert sum(outcome.status == "holds" for outcome in outcomes) >= 13


@pytest.mark.thorough
def test_pytest_finds_a_test_for_every_law() -> None:
    path = EXAMPLES / "test_my_client.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=EXAMPLES.parent)
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert names == [f"test_laws[{name}]" for name in laws.LAWS]


def test_a_run_on_ones_own_data_model_and_loss_trains_resumes_replays_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES)
    own = ["--data=own_data.py:clients", "--model=own_data.py:model", "--loss=own_data.py:loss"]
    out = str(tmp_path / "run")
    for rounds in ("4", "6"):
        assert main(["train", *own, "--rounds", rounds, "--sampled", "2", "--eval-every", "2", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "own data: 1,000 examples of 10 clients, 100 held out" in told
    assert main(["replay", out, "--measure", "3", "--trust-code"]) == 0
    assert "round 3 measured anew by 2 clients: the recorded scalars bit for bit" in capsys.readouterr().out
    assert main(["kappa", out, *own, "--products", "8"]) == 0
    assert "loss 0." in capsys.readouterr().out


@pytest.mark.thorough
def test_the_folder_of_a_pretrained_model_is_one_to_fine_tune(tmp_path: Path) -> None:
    transformers()
    pytest.importorskip("tokenizers", reason="the extra llm is not installed")
    told = printed("pretrain.py", "opt-0.3m", str(tmp_path / "model"), "100", folder=tmp_path)
    assert "step 100 of 100: loss" in told
    assert "opt-0.3m: d = 490,512, 51,200 tokens" in told
    assert load_causal(str(tmp_path / "model")).tokenizer.pad == 1


@pytest.mark.thorough
def test_ones_own_model_learns_from_scalars_and_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    out = printed("train.py", str(tmp_path / "run"), folder=tmp_path)
    accuracies = [float(line.split()[1]) for line in out.splitlines() if re.match(r" +\d+ ", line)]
    assert accuracies[0] < 0.9 < accuracies[-1]
    assert "rebuilt: 10 of 10 clients" in out
    assert re.search(r"after 120 rounds: accuracy 0\.9", out)
    assert (tmp_path / "run" / "run.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_method_of_ones_own_clips_what_its_clients_send(tmp_path: Path) -> None:
    told = printed("my_method.py", folder=tmp_path)
    losses = dict(re.findall(r"c = ([\d.]+): loss ([\d.]+); rebuilt: 10 of 10", told))
    assert float(losses["1.0"]) < float(losses["0.01"])


def test_the_command_that_the_method_of_ones_own_names_is_kept_resumed_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = re.search(r"``decomfl (train .*?)``", (EXAMPLES / "my_method.py").read_text(encoding="utf-8"))
    assert said is not None
    monkeypatch.syspath_prepend(EXAMPLES)
    for rounds in ("1", "2"):
        assert main([*said[1].split(), "--clients", "10", "--rounds", rounds, "--out", str(tmp_path)]) == 0
    assert main(["replay", str(tmp_path), "--trust-code"]) == 0
