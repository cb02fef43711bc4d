"""Processes of a real run are killed, and all models end with the bits of the simulation in which nobody died."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from decomfl_lab import Run, TrainConfig
from tests.decomfl_lab.carriers import killed

SHORT = TrainConfig(
    data="digits",
    model="logistic",
    clients=2,
    sampled=2,
    rounds=50,
    batch_size=32,
    perturbations=10,
    seeds="per-run",
    eval_every=50,
)
LONG = replace(SHORT, data="mnist", model="cnn-mnist", clients=4, sampled=3, rounds=50, test_examples=500)
OF_ENGINES = [pytest.mark.engine, pytest.mark.thorough]


def simulated(config: TrainConfig) -> str:
    """The digest of the model of the run in this process, in which nobody dies."""
    run = Run(config)
    run.train()
    return str(run.federation.observer.digest())


@pytest.mark.parametrize(
    ("engine", "library", "config"),
    [
        pytest.param(killed.over_stream, "grpc", SHORT, id="stream", marks=pytest.mark.thorough),
        pytest.param(killed.over_stream, "grpc", LONG, id="stream, long", marks=pytest.mark.thorough),
        pytest.param(killed.by_ray, "ray", LONG, id="ray", marks=OF_ENGINES),
        pytest.param(killed.by_nvflare, "nvflare", LONG, id="nvflare", marks=OF_ENGINES),
    ],
)
def test_all_models_have_the_simulators_bits_after_clients_and_server_were_killed(
    engine: Callable[[TrainConfig, Path], dict[str, str]], library: str, config: TrainConfig, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed here: make engines has it")
    digests = engine(config, tmp_path)
    assert len(digests) == config.clients + 1
    assert digests == dict.fromkeys(digests, simulated(config))


def test_a_model_that_is_another_would_be_noticed() -> None:
    assert simulated(SHORT) != simulated(replace(SHORT, seed=1))
