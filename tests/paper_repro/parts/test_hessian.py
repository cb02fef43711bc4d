"""The figure of Hessian eigenvalues: its numbers are those of dense matrices."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from decomfl_lab.devices import use_tf32_
from decomfl_lab.progress import Progress
from hessian.trained_models import untrained
from paper_repro.parts.hessian import measured_density, measured_spectra
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.series import from_toml
from tests.cases import rows_of
from tests.hessian import problems

TINY = SCALES["smoke"].hessian.but(**from_toml(rows_of(__file__)["tiny"]))
SMALL_CHECK = partial(measured_density, model="logistic", steps=50, examples=100, products=20, probes=2)


def test_the_numbers_are_those_of_the_dense_hessian_at_every_step(tmp_path: Path) -> None:
    seen: list[Progress] = []
    use_tf32_(True)  # torch's default
    rows, facts = measured_spectra(tmp_path / "a", seen.append, TINY, "digits", "cpu")
    assert not torch.backends.cudnn.allow_tf32
    assert facts["data"].startswith("scikit-learn's 8×8 digits")
    assert [at.round for at in seen] == list(range(1, 14))
    assert {at.rounds for at in seen} == {13}
    assert sorted(rows.step.unique()) == [0, 5, 10]
    start = untrained("mlp", "digits", seed=0)
    (objective,) = start.mean_loss(examples=60)
    (piece,) = objective.pieces
    dense = problems.dense_hessian(objective, start.module, piece.inputs, piece.targets)
    eigenvalues = torch.linalg.eigvalsh(dense.double()).numpy()
    at_start = rows[(rows.step == 0) & (rows.kind == "estimate")].set_index("name")
    assert at_start.value["d"] == len(eigenvalues)
    assert at_start.value["loss"] == pytest.approx(objective.value, rel=1e-6)
    assert at_start.low["lambda_max"] <= eigenvalues[-1] <= at_start.high["lambda_max"]
    assert at_start.value["lambda_max"] == pytest.approx(eigenvalues[-1], rel=0.02)
    norm = np.abs(eigenvalues).max()
    exact = {
        "signed": eigenvalues.sum() / norm,
        "absolute": np.abs(eigenvalues).sum() / norm,
        "positive": eigenvalues.clip(0).sum() / eigenvalues[-1],
        "near zero": (np.abs(eigenvalues) < 0.01 * norm).mean(),
    }
    for name, value in exact.items():
        assert at_start.low[name] <= value <= at_start.high[name], name
        assert at_start.value[name] == pytest.approx(value, rel=0.5), name
    curve = rows[(rows.step == 10) & (rows.kind == "curve")]
    assert np.trapezoid(curve.density, curve.value) == pytest.approx(1.0, abs=0.02)
    losses = rows[rows.name == "loss"].set_index("step").value
    assert losses[10] < losses[0]


def test_the_density_is_checked_against_a_dense_spectrum(tmp_path: Path) -> None:
    rows, facts = SMALL_CHECK(tmp_path / "sound", lambda _: None)
    assert facts["data"].startswith("scikit-learn's 8×8 digits")
    sound = rows.set_index("name")["value"]
    assert (sound["d"], sound["products"]) == (650, 20)
    assert sound["kappa"] == pytest.approx(sound["true kappa"], rel=0.3)
    assert 0.0 < sound["distance"] < 0.5
