"""The census of κ: its rows are those of dense matrices, and what is drawn of them is of the last moment alone."""

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


def test_the_numbers_are_those_of_dense_matrices_and_the_last_moment_is_drawn(tmp_path: Path) -> None:
    begins = census.training("mlp", "digits", "cross-entropy", OPTIONS.scale.census.but(steps=(0, 20), batch_size=32))
    begins.run(tmp_path / begins.key(), lambda _: None)
    networks = [
        census.CensusEntry(network="mlp", data="digits", loss="cross-entropy", n=60, steps=steps, by_layer=layers)
        for steps, layers in ((20, False), (20, True), (0, False))
    ]
    works = [census.work_of(own, OPTIONS.scale.census.but(products=24), begins, 0) for own in networks]
    rows = pd.concat([each.run(tmp_path / each.key(), lambda _: None)[0].assign(**each.labels) for each in works])
    found = networks[0].made(tmp_path / begins.key())
    (objective,) = found.mean_loss(examples=60)
    ways = problems.dense_hessian, problems.dense_gauss_newton
    (piece,) = objective.pieces
    H, G = (torch.linalg.eigvalsh(way(objective, found.module, piece.inputs, piece.targets).double()) for way in ways)
    norm = H.abs().max()
    exact = {"signed": H.sum() / norm, "positive": H.clamp(min=0).sum() / H[-1], "absolute": H.abs().sum() / norm}
    last = census.last_moments(rows).set_index("reading")
    for reading, value in {**exact, "gauss-newton": G.sum() / G[-1]}.items():
        assert last.low[reading] <= value <= last.high[reading], reading
        assert last.value[reading] == pytest.approx(float(value), rel=0.3), reading
    assert {*rows[rows.by_layer].layer} == {"1", "3"}
    # Planted: rows of another number of examples, were they taken for the usual ones.
    others = [pd.concat([rows, rows.assign(n=8, usual=usual)]) for usual in (False, True)]
    assert [len(census.last_moments(each)) for each in others] == [4, 8]
    assert census.make(rows, [{"data": "made up"}], OPTIONS).figures["census"]().findobj()


def test_what_cannot_be_had_here_is_left_out(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("efficientnet_lite_pytorch")
    monkeypatch.setattr(census, "missing", lambda *_: "no text")
    assert {work.labels["network"] for work in census.jobs(OPTIONS)} == {"mlp", "logistic"}
