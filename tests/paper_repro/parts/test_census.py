"""The census of κ: its rows are those of dense matrices, and what is drawn of them is of the last moment alone."""

import importlib.util
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from paper_repro.parts import census
from paper_repro.workflow.part import Options
from paper_repro.workflow.scales import SCALES
from tests.hessian import problems

OPTIONS = Options(scale=SCALES["smoke"], readings=("as-plotted",), count="wire")
NETWORK: dict[str, Any] = {"network": "mlp", "data": "digits", "loss": "cross-entropy", "n": 60}


def test_the_numbers_are_those_of_dense_matrices_and_the_last_moment_is_drawn(tmp_path: Path) -> None:
    begins = census.training("mlp", "digits", "cross-entropy", SCALES["smoke"].census.but(steps=(0, 20), batch_size=32))
    (folder := tmp_path / begins.key()).mkdir()
    assert [*census._trained(folder, lambda _: None, **begins.arguments)[0].step] == [20]
    frames = []
    for steps, layers in ((20, False), (20, True), (0, False)):
        (own := tmp_path / f"{steps} {layers}").mkdir()
        network = census.Network(**NETWORK, steps=steps, by_layer=layers)
        rows, _ = census._measured(own, lambda _: None, network, 40, begins)
        frames.append(rows.assign(**vars(network)))
    found = census.Network(**NETWORK, steps=20).made(folder)
    (objective,) = found.mean_loss(examples=60)
    (piece,) = objective.pieces
    dense, gauss_newton = (
        torch.linalg.eigvalsh(way(objective, found.module, piece.inputs, piece.targets).double())
        for way in (problems.dense_hessian, problems.dense_gauss_newton)
    )
    norm = dense.abs().max()
    exact = {
        "signed": dense.sum() / norm,
        "positive": dense.clamp(min=0).sum() / dense[-1],
        "absolute": dense.abs().sum() / norm,
        "gauss-newton": gauss_newton.sum() / gauss_newton[-1],
    }
    rows = pd.concat(frames, ignore_index=True)
    last = census.last_moments(rows).set_index("reading")
    assert {*last.index} == {*exact}
    assert len(last) == 4
    for reading, value in exact.items():
        assert last.low[reading] <= value <= last.high[reading], reading
        assert last.value[reading] == pytest.approx(float(value), rel=0.3), reading
    assert {*rows[rows.by_layer].layer} == {"1", "3"}
    # Planted: rows of another number of examples, were they taken for the usual ones.
    others = rows.assign(n=8, usual=False)
    assert len(census.last_moments(pd.concat([rows, others]))) == 4
    assert len(census.last_moments(pd.concat([rows, others.assign(usual=True)]))) == 8
    figure = census.make(rows, [{"data": "made up"}], OPTIONS).figures["census"]()
    assert "mlp, digits" in {str(each.get_text()) for each in figure.findobj(lambda a: hasattr(a, "get_text"))}


def test_what_cannot_be_had_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(census, "missing", lambda *_: "no text")
    works = census.jobs(OPTIONS)
    assert {work.labels["network"] for work in works} == {"mlp", "logistic"}
    assert len({work.key() for work in works}) == len(works) == 7
