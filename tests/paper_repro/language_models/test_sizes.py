"""The scale figure: settings to the letter, verdicts that come out every way, κ and η checked against closed forms."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.language.finetuning import task_dataset, task_module
from decomfl_lab.processes import Processes
from decomfl_lab.runs.configuration import read_config
from paper_repro.language_models import sizes
from paper_repro.language_models.sizes import claims, configuration, of_model, run_table
from paper_repro.workflow.runs import run_all
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.series import from_toml
from tests.cases import rows_of
from tests.decomfl_lab.language.toy import toy_sst2
from tests.paper_repro.parts.test_parts import options

SIZE = SCALES["smoke"].sizes.but(**from_toml(rows_of(__file__)["size"]))


def run(model: str, d: int, seed: int, time: float) -> pd.DataFrame:
    """A loss that falls as exp(−round/time)."""
    rounds = np.arange(0, SIZE.rounds + 1, SIZE.eval_every)
    done = 1 - np.exp(-rounds / time)
    frame = pd.DataFrame({"round": rounds, "test_loss": 0.7 - 0.2 * done, "test_accuracy": 0.5 + 0.2 * done})
    frame = frame.assign(what="evaluation", model=model, d=d, eta=0.1, seed=seed, wire_scalars=10.0 * rounds)
    return frame.assign(calibrated_accuracy=0.5, train_loss=0.7, diverged=0)


def family(*times: Sequence[float], D: Sequence[int] = (10**5, 10**6, 10**7)) -> pd.DataFrame:
    """Three models with the time of each seed, and κ of all at the start and at the end."""
    row = {"what": "kappa", "eta": 0.1, "kappa": 2.0, "lambda_max": 2.0, "low": 1.9, "high": 2.1}
    frames = []
    for model, d, own in zip("abc", D, times, strict=True):
        frames += [run(model, d, seed, time) for seed, time in enumerate(own)]
        of_model = pd.DataFrame({"at": ["start", "end"], "seed": [math.nan, 0]})
        frames.append(of_model.assign(model=model, d=d, **row))
    return pd.concat(frames, ignore_index=True)


FLAT = ((12.0, 12.2), (12.1, 12.0), (12.2, 12.1))


def verdicts(rows: pd.DataFrame) -> dict[str, str]:
    return {claim.id.removeprefix("sizes."): claim.verdict for claim in claims(rows, SIZE, "made up")}


def test_rounds_are_those_of_the_exponential_fall() -> None:
    table = run_table(family(*FLAT), SIZE)
    assert list(table.model) == ["a", "a", "b", "b", "c", "c"]
    assert table.settled.all()
    times = np.array(FLAT).ravel()
    assert table.rounds.to_numpy() == pytest.approx(times * math.log(10), rel=0.05)
    assert table.accuracy_end.to_numpy() == pytest.approx(np.full(6, 0.7), abs=0.001)
    error = math.sqrt(0.7 * 0.3 / 100)  # within one of the end: 0.5 + 0.2 (1 − e^(−r/12)) ≥ 0.7 − error
    assert table.accuracy_rounds[0] == 5 * math.ceil(12 * math.log(0.2 / error) / 5)
    assert table.wire_bytes.iloc[0] == 4 * 10 * 100


UNTESTED, HOLDS, FAILS = "not tested at this scale", "holds", "does not hold"


@pytest.mark.parametrize(
    ("rows", "same_round", "larger_later", "not_by_d"),
    [
        (family(*FLAT), HOLDS, UNTESTED, HOLDS),
        (family((10, 10.1), (13, 13.1), (17, 17.1)), HOLDS, HOLDS, HOLDS),
        (family((17, 17.1), (13, 13.1), (10, 10.1)), HOLDS, FAILS, HOLDS),
        (family((2, 2.1), (6.4, 6.5), (20, 20.3)), FAILS, HOLDS, HOLDS),  # by √d
        (family((1.6, 1.5), (6, 6.1), (22, 22.3), D=(10**5, 3 * 10**5, 10**6)), FAILS, HOLDS, FAILS),  # by d
        (family((4, 20), (20, 5), (10, 22)), UNTESTED, UNTESTED, HOLDS),  # scattered
    ],
)
def test_rounds_decide_every_way(rows: pd.DataFrame, same_round: str, larger_later: str, not_by_d: str) -> None:
    """By lines that the recorded rows leave open, wherever their bounds are."""
    found = verdicts(rows)
    assert (found["same-round"], found["larger-later"], found["not-by-d"]) == (same_round, larger_later, not_by_d)


SPOILT = {
    "still falling": lambda own: own.assign(test_loss=0.7 - 0.002 * own["round"]),  # there at 0.85 of its rounds
    "rises": lambda own: own.assign(test_loss=0.7 + 0.002 * own["round"]),
    "diverged": lambda own: own[own["round"] <= 60].assign(diverged=1),
    "collapsed": lambda own: own.assign(test_accuracy=0.52),  # the loss falls, and the answers are of one class
    "learnt nothing": lambda own: own.assign(test_loss=0.7 - (0.7 - own.test_loss) / 20),  # a smooth fall of 0.01
    "noise": lambda own: own.assign(test_loss=0.7 + 0.05 * np.cos(np.arange(len(own)) * 2.0)),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_runs_that_did_not_converge_decide_nothing(spoil: str) -> None:
    rows = family(*FLAT)
    one = (rows.model == "c") & (rows.seed == 1) & (rows.what == "evaluation")
    rows = pd.concat([rows[~one], SPOILT[spoil](rows[one])])
    assert list(run_table(rows, SIZE).settled) == [True] * 5 + [False]
    found = verdicts(rows)
    assert {found[name] for name in ("same-round", "larger-later", "not-by-d")} == {"not tested at this scale"}
    (claim,) = [each for each in claims(rows, SIZE, "made up") if each.id == "sizes.same-round"]
    assert (claim.measured["runs that settled"], claim.measured["runs"]) == (5, 6)
    assert claim.measured["rounds, c"] is None or spoil == "still falling"
    assert claim.measured["rounds, a"] == 28  # 12 log(10), and no digits behind


@pytest.fixture
def toy(at_hand: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_sst2(tmp_path / "data", monkeypatch)


@pytest.mark.usefixtures("toy")
def test_a_work_trains_every_seed_at_its_eta_and_measures_kappa(tmp_path: Path) -> None:
    size = SIZE.but(models=("toy",), rounds=4, eval_every=2, test_examples=12, share=0.5, products=20)
    work = of_model(size, "toy")
    seen: list[tuple[int, int]] = []
    rows, facts = work.run(tmp_path, lambda at: seen.append((at.round, at.rounds)))
    assert seen == [(r, 8) for r in range(1, 9)]
    assert facts["data"].startswith("SST-2: 80 train / 20 test")
    evaluations, kappas = rows[rows.what == "evaluation"], rows[rows.what == "kappa"]
    assert evaluations.groupby("seed")["round"].agg(list).to_dict() == {0: [0, 2, 4], 1: [0, 2, 4]}
    assert list(kappas["at"]) == ["start", "end", "end"]
    start = kappas.iloc[0]
    assert rows.eta.unique() == pytest.approx([0.5 / (4 * start.lambda_max * (1 + (start.kappa + 1) / 5))])
    assert read_config(tmp_path / "1" / "config.toml")["lr"] == rows.eta[0]

    config = configuration(size, "toy")  # κ by all eigenvalues of G = JᵀMJ / n, M of softmax cross-entropy
    data, module = task_dataset(config), task_module(config)
    chosen = fixed_choice(80, 16, 8)
    jacobian = []
    for ids in data.train_images[chosen]:
        margin = module(ids[None])[0].diff()
        parts = torch.autograd.grad(margin, list(module.parameters()), allow_unused=True, materialize_grads=True)
        p = torch.sigmoid(margin.detach())
        jacobian.append((p * (1 - p)).sqrt() * torch.cat([part.flatten() for part in parts]))
    eigenvalues = torch.linalg.svdvals(torch.stack(jacobian).double()) ** 2 / 16
    assert start.lambda_max == pytest.approx(float(eigenvalues[0]), rel=1e-4)
    assert start.low <= float(eigenvalues.sum() / eigenvalues[0]) <= start.high


@pytest.mark.usefixtures("toy")
def test_works_of_all_sizes_make_the_part(tmp_path: Path, smoke: Callable[..., None]) -> None:
    size = SIZE.but(models=("a", "b"), rounds=4, eval_every=2, test_examples=12)
    smoke(sizes=size)
    works = sizes.jobs(options("smoke"))
    assert len({work.key() for work in works}) == 2
    with Processes(1) as here:
        results = run_all(works, tmp_path / "runs", here)
    rows = pd.concat([frame for frame, _ in results], ignore_index=True)
    made = sizes.make(rows, [facts for _, facts in results], options("smoke"))
    assert len(made.claims) == 5
    assert list(made.tables["sizes"].model) == ["a", "a", "b", "b"]


@pytest.mark.usefixtures("toy")
def test_a_run_that_diverges_ends_its_rows(tmp_path: Path) -> None:
    size = SIZE.but(models=("toy",), rounds=30, seeds=(0,), test_examples=12, etas={"toy": 1e30})
    rows, _ = of_model(size, "toy").run(tmp_path, lambda _: None)
    assert list(rows[rows.what == "kappa"]["at"]) == ["start"]
    assert not run_table(rows, size).settled.any()
