"""Quadratics as a run has them: the known truth, whatever trains on them."""

import numpy as np
import pytest
import torch

from decomfl_lab import Run, TrainConfig
from decomfl_lab.layout import Layout
from theory.problems import trainable
from theory.problems.quadratic import expected
from theory.problems.trainable import KAPPA_4, KAPPA_32, TURNED_32, mean_output

PROBLEMS = {"KAPPA_4": KAPPA_4, "KAPPA_32": KAPPA_32, "TURNED_32": TURNED_32}


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_hessian_has_the_spectrum_and_the_loss_begins_at_one(name: str) -> None:
    problem = PROBLEMS[name]
    module = problem.model()
    _, (tilts, targets) = problem.data()
    x = Layout.of(module).flatten(module)

    def f(point: torch.Tensor) -> torch.Tensor:
        return mean_output(torch.func.functional_call(module, {"x": point}, (tilts,)), targets)

    H = torch.func.hessian(f)(x)
    eigenvalues = torch.linalg.eigvalsh(H)
    assert float(f(x)) == pytest.approx(1.0, rel=1e-5)
    assert float(H.trace() / eigenvalues[-1]) == pytest.approx(problem.bowl.quadratic.spectrum.kappa, rel=1e-4)
    assert (float((H - H.diag().diag()).abs().max()) > 1e-3) == problem.turned


def test_the_clients_tilts_are_those_of_the_problem() -> None:
    clients, _ = KAPPA_4.data()
    tilts = torch.stack([own for own, _ in clients]).double().numpy()
    quadratic = KAPPA_4.bowl.quadratic
    assert np.abs(tilts.mean((0, 1))).max() < 1e-7
    assert np.sqrt((tilts.mean(1) ** 2).sum(-1)) == pytest.approx(np.full(20, quadratic.sigma_G), rel=1e-5)
    assert 0.5 * np.linalg.norm(tilts[:, 0] - tilts[:, 1], axis=1) == pytest.approx(np.full(20, quadratic.sigma))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["KAPPA_32", "TURNED_32"])
def test_a_runs_mean_loss_is_that_of_the_closed_form(name: str) -> None:
    rounds, eta, place = 12, 0.08, f"{trainable.__name__}:"
    config = TrainConfig(
        "decomfl", model=f"{place}{name}.model", data=f"{place}{name}.data", loss=f"{place}mean_output", rounds=rounds,
        eval_every=rounds, lr=eta, perturbations=5, mu=1e-2, momentum=0.0, weight_decay=0.0, clients=20, sampled=4,
        batch_size=1, rebuild="copy",
    )  # fmt: skip
    found = [float(Run(config.but(seed=seed)).train()["test_loss"].iloc[-1]) for seed in range(16)]
    setting = PROBLEMS[name].bowl.quadratic.setting(eta=eta, m=4, M=20, P=5, R=rounds, central=True)
    truth = float(expected(PROBLEMS[name].bowl.quadratic, setting).f[-1])
    error = float(np.std(found, ddof=1)) / 4
    assert abs(float(np.mean(found)) - truth) < 4 * error
    assert error < 0.1 * truth
