"""Whitened κ: D H D against the dense matrix, by every estimator and from the command line; what it owes nothing to."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import hessian
from decomfl_lab.cli import main as cli
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.runs.run import load_run
from hessian import MeanLoss, gauss_newton_trace
from hessian.operators.options import OPERATORS
from hessian.trained_models import from_run, scale_of
from tests.cases import refused, refuses, rows_of, sampled
from tests.hessian.commands.test_kappa import run
from tests.hessian.operators.test_smoothing import quadratic
from tests.hessian.problems import columns, data, mlp
from tests.hessian.spectra import rotated

H = rotated(torch.cat([torch.logspace(0, 2, 59), torch.tensor([-3.0])]))
S = torch.logspace(-1, 1, 60, dtype=torch.float64)[torch.randperm(60, generator=torch.Generator().manual_seed(0))]
SMALL = ["--data", "digits", "--model", "logistic", "--examples", "50", "--train-steps", "0"]


def exact(matrix: Tensor, s: Tensor) -> tuple[float, float]:
    """Trace and κ of the whitened matrix, from all its eigenvalues."""
    values = torch.linalg.eigvalsh(s[:, None] * matrix * s)
    return float(values.sum()), float(values.sum() / values.abs().max())


@pytest.mark.parametrize("seed", range(2))
def test_the_interval_holds_the_effective_rank_of_the_dense_whitened_matrix(seed: int) -> None:
    found = hessian.effective_rank(H, whiten=S, rtol=0.02, confidence=0.999, seed=seed)
    assert found.interval[0] <= exact(H.matrix, S)[1] <= found.interval[1]
    assert not found.interval[0] <= exact(H.matrix, torch.ones(60))[1] <= found.interval[1]
    assert found.operator == "whitened dense"


def test_the_gauss_newton_trace_of_a_relu_net_is_the_hessians_when_both_are_whitened() -> None:
    plain = hessian.HessianOperator(MeanLoss(mlp(), torch.nn.functional.cross_entropy, data()))
    s = torch.linspace(0.1, 3.0, plain.d, dtype=torch.float64)
    trace, kappa = exact(columns(plain), s)
    twin = hessian.trace_operator(plain)
    assert gauss_newton_trace(twin, whiten=s) == pytest.approx(trace)
    found = hessian.effective_rank(plain, whiten=s, trace_operator=twin, confidence=0.999)
    assert found.interval[0] <= kappa <= found.interval[1]
    assert hessian.effective_rank(plain, whiten=s, trace=trace).kappa == pytest.approx(kappa, rel=1e-3)


def test_values_of_the_loss_alone_see_the_whitened_trace() -> None:
    at = hessian.WhitenedObjective(quadratic(H.matrix), torch.ones(60, dtype=torch.float64), S)
    values = hessian.forward_only(at, at.y, seed=0, probes=400)
    assert abs(values.trace.value - exact(H.matrix, S)[0]) < 4 * values.trace.stderr
    smoothed = hessian.SmoothedOperator(at, at.y, 1e-2)
    assert torch.allclose(smoothed.matvec(S), S * (H.matrix @ (S * S)), rtol=1e-6)


@refuses(
    (torch.ones(59), r"whiten must have shape \(60,\), got \(59,\)"),
    (torch.zeros(60), r"whiten must be finite and above 0 in every element, in torch.float64, got \[0.0\]"),
    (torch.full((60,), float("nan")), r"got \[nan\]"),
    (torch.cat([S[:59], torch.tensor([-1.5])]), r"got \[-1.5\]"),
)
def test_what_is_no_scale_is_refused_by_name(s: Tensor) -> None:
    hessian.effective_rank(H, whiten=s)


OF_OPERATORS = [
    (["--operator", name, "--products", "12", "--dtype", "float64", "--mu", "1e-2"], ["estimate", "lambda_max"])
    for name in OPERATORS
]


@pytest.mark.parametrize(("more", "name"), sampled([*OF_OPERATORS, *map(tuple, rows_of(__file__)["rows"])], 4))
def test_every_operator_and_every_way_to_measure_is_whitened(
    more: list[str], name: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = tmp_path / "two.npy"
    np.save(two, np.full(650, 2.0))
    plain, scaled = (run(capsys, *SMALL, *more, *whiten) for whiten in ((), ("--whiten", str(two))))
    if "estimate" in name:
        assert scaled["estimate"]["operator"] == f"whitened {plain['estimate']['operator']}"
    for each in name:
        plain, scaled = plain[each], scaled[each]
    assert scaled == pytest.approx(4 * plain, rel=0.01)


def test_a_run_of_hiso_is_whitened_by_the_scale_of_its_last_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = "train hiso --data digits --model logistic --clients 4 --sampled 2 --rounds 10 --perturbations 2 --lr 0.05"
    assert cli.main([*argv.split(), "--out", str(out)]) == 0
    capsys.readouterr()
    federation = load_run(out).federation
    assert isinstance(federation, DeComFLFederation)
    s = federation.observer.state["scale"]
    assert s.unique().numel() > 600
    assert all(torch.equal(scale_of(source), s) for source in (out, out / "checkpoint.safetensors"))
    argv = f"kappa {out} --examples 100 --whiten {out} --trace exact --json"
    assert cli.main(argv.split()) == 0
    found = json.loads(capsys.readouterr().out)["estimate"]
    (objective,) = from_run(out).mean_loss(examples=100)
    trace, rank = exact(columns(hessian.HessianOperator(objective)).double(), s.double())
    assert found["trace"]["value"] == pytest.approx(trace, rel=1e-4)
    assert found["kappa"] == pytest.approx(rank, rel=1e-2)


def test_a_scale_that_cannot_be_had_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"x": torch.ones(2), "y": torch.ones(2)}, tmp_path / "two.safetensors")
    np.save(tmp_path / "short.npy", np.ones(3))
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    plain = "train decomfl --data digits --model logistic --clients 2 --sampled 2 --rounds 1 --out"
    assert cli.main([*plain.split(), str(tmp_path / "plain")]) == 0
    for name, message in (
        ("missing.npy", "whiten must be a run, a .npy or a .safetensors file, got"),
        ("broken.npy", "whiten must be a run, a .npy or a .safetensors file, got"),
        ("two.safetensors", "whiten must be a file of one tensor, got"),
        ("short.npy", "whiten must have shape (650,), got (3,)"),
        ("plain", "whiten must be a run that scales its directions, as hiso does, got"),
    ):
        assert message in refused(capsys, "kappa", *SMALL, "--whiten", str(tmp_path / name))
