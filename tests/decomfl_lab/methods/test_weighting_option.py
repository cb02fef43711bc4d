"""The option ``weighting``: which optimum each method reaches, what it sends, and where it is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import decomfl_lab as lab
from decomfl_lab import TrainConfig
from decomfl_lab.datasets.user_data import own_dataset
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.protocol.messages import Dense
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses, rows_of, sampled

WEIGHED = [name for name in METHODS if name not in ("feedsign", "mezo")]
HOSPITALS = [(torch.ones(1, 1), torch.zeros(1)), (torch.ones(99, 1), torch.ones(99))]
"""Two hospitals with 1 and 99 patients: the pooled optimum is 0.99, the mean of the clients' 0.5."""


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs[:, 0], targets)


def _trained(method: str, **options: Any) -> lab.Run:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.4)
    # Clients keep their Adam, which swings around the optimum before it settles.
    fitting: dict[str, Any] = {"rounds": 300 if method in ("fedavg", "fedavg-topk", "fedcom") else 60, "lr": 0.1}
    if method == "fzoo":  # its steps keep their length; along signs in R^1 its spread is next to 0
        fitting = {"rounds": 300, "lr": 0.02, "distribution": "sphere"}
    return lab.train(model, _squares, HOSPITALS, method=method, batch_size=99, **options, **fitting)


@pytest.mark.parametrize("method", sampled(WEIGHED, 1))
def test_two_hospitals_find_the_pooled_optimum_by_examples_and_the_mean_of_theirs_by_clients(method: str) -> None:
    for weighting, optimum in {"examples": 0.99, "clients": 0.5}.items():
        run = _trained(method, weighting=weighting)
        assert float(next(run.model.parameters()).detach()) == pytest.approx(optimum, abs=0.02)
        assert run.metrics.train_loss.iloc[-1] == pytest.approx(optimum * (1 - optimum), abs=0.01)
        assert run.verify()
        if weighting == "examples":  # tests/theory has the others
            assert run.check_traffic()


@pytest.mark.parametrize("method", ["fedavg", "fedcom", "fedavg-topk", "fedzo", "fedzo-projection"])
def test_a_mean_of_models_is_numpys_weighted_one(method: str) -> None:
    own = own_dataset([(torch.randn(n, 4), torch.arange(n) % 2) for n in (3, 20, 7)])
    config = TrainConfig(method, weighting="examples", model="logistic", clients=3, sampled=3, lr=0.1, data="own")
    federation: Any
    start = Prepared.of(config, own, module=nn.Linear(4, 2))
    federation, layout = start.federation(), start.layout
    sent, send = [], federation.uplink
    federation.uplink = lambda i, r, down, own: sent.append((down, send(i, r, down, own))) or sent[-1][1]
    federation.advance()
    models = [back.x if isinstance(back, Dense) else down + back.dense() for down, back in sent]
    wanted = np.average(models, axis=0, weights=[3, 20, 7])
    np.testing.assert_allclose(federation.x.numpy(), wanted, rtol=1e-6)
    assert layout.d == federation.x.numel() == 10


@refuses(*rows_of(__file__)["refused"])
def test_where_there_is_no_weight_the_option_is_refused(options: dict[str, Any]) -> None:
    TrainConfig(**options)


def test_it_is_of_the_runs_identity() -> None:
    plain, weighed = (TrainConfig(weighting=weighting) for weighting in ("clients", "examples"))
    assert plain.identity("00") == TrainConfig().identity("00") != weighed.identity("00")
