"""A run that logs κ's bracket is the same to the bit, with numbers of its Hessian; what rounding hides is told."""

import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab import RoundingWarning, Run, TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.estimators.differences import ESTIMATORS, ScalarEstimate
from decomfl_lab.estimators.resolution import ENOUGH, Resolution
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses, rows_of, sampled

RUN = TrainConfig(
    data="digits", model="logistic", clients=6, sampled=3, rounds=6, perturbations=4, lr=0.01, mu=1e-3, batch_size=16,
    eval_every=2, perturbation_schedule={4: 3}, log_kappa=True,
)  # fmt: skip
VARIANTS = rows_of(__file__)


def _federation(config: TrainConfig) -> DeComFLFederation:
    federation = Prepared.of(config, load_dataset("digits")).federation()
    assert isinstance(federation, DeComFLFederation)
    return federation


@pytest.mark.parametrize("variant", sampled(VARIANTS, 3))
def test_a_run_is_the_same_to_the_bit_and_the_byte_with_and_without_the_log(variant: str) -> None:
    logged, silent = (_federation(replace(RUN, log_kappa=on, **VARIANTS[variant])) for on in (True, False))
    for _ in range(RUN.rounds):
        assert logged.advance() == silent.advance()
        assert logged.observer.digest() == silent.observer.digest()
    assert logged.ledger.save() == silent.ledger.save()
    K = VARIANTS[variant].get("local_steps", 1)
    assert logged.curvature is not None
    assert np.array(logged.curvature.steps).shape == (RUN.rounds * K, 3)
    assert silent.curvature is None


def test_trace_norm_and_bracket_are_those_of_the_hessian_of_the_mean_loss() -> None:
    """Clients with fixed batches at a model that stands still: truths from dense Hessians of each client's loss."""
    config = replace(
        RUN, clients=4, sampled=4, rounds=60, perturbations=20, perturbation_schedule={}, lr=1e-9, mu=1e-2,
        batch_size=1000, eval_every=60, weight_decay=0.0,
    )  # fmt: skip
    dataset = load_dataset("digits")
    start = Prepared.of(config, dataset)
    federation, module, layout = start.federation(), start.module, start.layout

    def loss(x: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(layout.names, x.split([shape.numel() for shape in layout.shapes]), strict=True))
        shaped = {name: parts[name].view(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)}
        return cross_entropy(functional_call(module, shaped, (inputs,)), targets)

    clients = federation.clients  # type: ignore[attr-defined]
    dense = [hessian(loss)(federation.x, *client.objective.batch(0)).double() for client in clients]
    mean = sum(dense) / 4
    across = [a * b for i, a in enumerate(dense) for j, b in enumerate(dense) if i != j]
    square = float(sum(product.sum() for product in across) / 12)
    row = Run(config, dataset=dataset).train().iloc[-1]
    assert abs(row.hessian_trace - float(mean.trace())) < 4 * row.hessian_trace_stderr
    assert row.hessian_trace_stderr < 0.02 * row.hessian_trace
    assert row.hessian_frobenius == pytest.approx(square**0.5, rel=0.05)
    kappa = float(mean.trace() / torch.linalg.eigvalsh(mean).abs().max())
    assert 1 < row.kappa_low < kappa < min(row.kappa_high, row.kappa_high_psd)
    assert row.kappa_high_psd < 5 * kappa


@refuses(
    ({"method": "fedavg", "log_kappa": True}, "option of fedavg must be one of"),
    ({"method": "decomfl-projection", "log_kappa": True}, "option of decomfl-projection must be one of"),
    ({"estimator": "forward"}, "estimator for log_kappa must be one of central, got 'forward'"),
    ({"distribution": "rademacher"}, "distribution for log_kappa must be gaussian or sphere"),
    ({"perturbations": 2}, "perturbations P for log_kappa must be an integer of at least 3"),
    ({"perturbation_schedule": {3: 2}}, "perturbations P for log_kappa must be an integer of at least 3"),
)
def test_runs_that_cannot_log_it_are_refused(change: dict[str, object]) -> None:
    RUN.but(**change)  # type: ignore[arg-type]


# Resolution -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["forward", "central", "central-sign"])
@pytest.mark.parametrize(("numbers", "unit"), [("float32", 2.0**-24), ("float64", 2.0**-53), ("bfloat16", 2.0**-12)])
def test_four_units_of_the_loss_are_enough(numbers: str, unit: float, name: str) -> None:
    """A scalar is a difference over μ, or over 2μ for central differences; of signs their scalars count."""
    distance = 0.25 if name == "forward" else 0.5
    for size, warned in ((3.9, True), (4.1, False)):
        watch, g = Resolution(numbers), np.full((2, ENOUGH // 2), size * unit * 3.0 / distance)
        estimate = ScalarEstimate(np.sign(g), -3.0, signed=g) if "sign" in name else ScalarEstimate(g, -3.0)
        watch.see(ESTIMATORS[name], 0.25, [estimate])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            watch.tell()
            watch.tell()
        assert len(said) == warned
        assert watch.over
