"""A run warns where its scalars are differences below the rounding of its losses, and nowhere else."""

import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import decomfl_lab as lab
from decomfl_lab import RoundingWarning, Run, TrainConfig
from decomfl_lab.estimators.differences import ESTIMATORS, central_curved
from decomfl_lab.estimators.resolution import ENOUGH, Resolution, span
from decomfl_lab.methods.registry import METHODS
from tests.thorough import sampled

x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
CLIENTS = list(zip(x.split(100), (x[:, 0] > 0).long().split(100), strict=True))


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2, dtype=dtype)


def _said(clients: Any = CLIENTS, model: nn.Module | None = None, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        lab.train(_model() if model is None else model, clients=clients, **{"rounds": 3, "lr": 0.01} | options)
    return [str(warning.message) for warning in said if issubclass(warning.category, RoundingWarning)]


@pytest.mark.parametrize("method", sampled([name for name, kind in METHODS.items() if "mu" in kind.options()], 3))
def test_a_mu_below_the_rounding_of_the_loss_is_told_once_with_the_numbers(method: str) -> None:
    (told,) = _said(method=method, mu=1e-8, rounds=30 if method == "feedsign" else 3)
    assert re.match(r"mu = 1e-08 is too small for a loss of [01]\.\d+ in float32: its differences", told)
    assert re.search(r"are 0\.\d+ units of its rounding \(median of the first \d+\)", told)
    assert told.endswith("try mu = 0.001 or a model in float64")


@pytest.mark.parametrize("method", METHODS)
def test_the_defaults_say_nothing(method: str) -> None:
    few = {} if METHODS[method].alone else {"clients": 4, "sampled": 4}
    config = TrainConfig(method=method, data="digits", model="logistic", rounds=3, **few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(config).train()


def test_the_mu_that_is_named_is_enough_and_so_is_float64() -> None:
    (told,) = _said(mu=1e-7)
    better = float(told.split("try mu = ")[1].split(" ")[0])
    assert 1e-6 < better < 1e-4
    assert not _said(mu=better)
    wide = [(inputs.double(), targets) for inputs, targets in CLIENTS]
    assert not _said(wide, _model(torch.float64), mu=1e-8)


def test_a_run_that_goes_on_says_it_no_more(tmp_path: Any) -> None:
    assert _said(mu=1e-9, out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lab.load(tmp_path, _model(), clients=CLIENTS).more(2)


@pytest.mark.parametrize("name", ["forward", "central", "forward-sign", "central-sign"])
def test_the_distance_is_that_of_the_points(name: str) -> None:
    assert span(ESTIMATORS[name], 0.5) == (1.0 if "central" in name else 0.5)
    assert span(central_curved, 0.5) == 1.0
    assert span(ESTIMATORS["projection"], 0.5) == 0.0


@pytest.mark.parametrize(("numbers", "unit"), [("float32", 2.0**-24), ("float64", 2.0**-53), ("bfloat16", 2.0**-12)])
def test_four_units_of_the_loss_are_enough(numbers: str, unit: float) -> None:
    for size, warned in ((3.9, True), (4.1, False)):
        watch = Resolution(numbers)
        watch.note(np.full((2, ENOUGH // 2), size * unit * 3.0 / 0.5), -3.0, 0.5, 0.25)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            watch.tell()
            watch.tell()
        assert len(said) == warned
        assert watch.over


@pytest.mark.thorough
def test_the_command_says_it_in_one_line() -> None:
    command = "train --data digits --model logistic --clients 4 --sampled 4 --rounds 2 --mu 1e-9"
    done = subprocess.run([sys.executable, "-m", "decomfl_lab", *command.split()], capture_output=True, text=True)
    (line,) = [line for line in done.stderr.splitlines() if "rounding" in line]
    assert line.startswith("mu = 1e-09 is too small for a loss of 2.")
    assert "Warning" not in done.stderr
