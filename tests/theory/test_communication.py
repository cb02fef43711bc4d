"""The closed forms of communication: the exact expectation of what the ledger counts, over every sampling history."""

import re
from dataclasses import astuple
from pathlib import Path

import pytest

from decomfl_lab import TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.methods.expected_traffic import mean_traffic
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.protocol.messages import HEADER_BYTES
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import SEED_BYTES
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.runs.preparation import Prepared
from tests.cases import sampled
from theory import TABLE_1, ExpectedTraffic, expected_numbers, expected_traffic, value_of

BASE: dict[str, object] = {
    "data": "digits", "model": "logistic", "clients": 3, "sampled": 2, "rounds": 3, "local_steps": 2, "lr": 1e-3,
    "perturbations": 3, "perturbation_schedule": {1: 2}, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 4,
    "mu": 1e-3,
}  # fmt: skip
SINGLE = {"clients": 3, "sampled": 1, "rounds": 4}


def config(method: str, **changes: object) -> TrainConfig:
    return TrainConfig(**BASE).but(method, **changes)  # type: ignore[arg-type]


def _expectation(config: TrainConfig) -> tuple[ExpectedTraffic, int]:
    """The mean of the ledger over all histories, and d."""
    start = Prepared.of(config, load_dataset("digits"))
    federation, layout = start.federation(), start.layout
    return mean_traffic(federation, config.cohort), layout.d


CASES = [
    *[config(method) for method in METHODS if not method.startswith("decomfl")],
    *[config("decomfl", seeds=seeding.value, tracking=tracking.value) for seeding in Seeding for tracking in Tracking],
    config("decomfl-projection", seeds="per-run"),
    config("baffle", seeds="per-run"),
    config("feedsign", seeds="per-step", tracking="clients", perturbations=5, perturbation_schedule={1: 4}),
    config("feedsign", **SINGLE, history=1, server_model=True),
    config("fedcom", quantize_bits=3),
    config("fedcom", quantize_bits=4),
    config("fedcom", quantize_bits=5),
    *[config("decomfl", **SINGLE, history=n, server_model=True, tracking="clients") for n in (1, 2, 3)],
    config("decomfl", **SINGLE, history=1, server_model=True, momentum=0.9),  # a state travels with the model
    config("decomfl", **SINGLE, history=1, server_model=True, seeds="per-run"),
    config("decomfl", **SINGLE, seeds="per-run", tracking="clients"),
    config("decomfl", sampled=3, history=1),
    config("fedavg", **SINGLE),
    *[config(method, **SINGLE, weighting="examples") for method in METHODS if method not in ("feedsign", "mezo")],
]


def _name(config: TrainConfig) -> str:
    own = {"seeds": "", "tracking": "", "history": "", "weighting": ""} | config.method.plain()
    return (
        f"{config.method.name}-{own['seeds']}-{own['tracking']}-m{config.sampled}-N{own['history']}-{own['weighting']}"
    )


@pytest.mark.parametrize("config", sampled(CASES, 5), ids=_name)
def test_the_closed_form_is_the_expectation_of_the_ledger(config: TrainConfig) -> None:
    found, d = _expectation(config)
    expected = expected_traffic(config, d)
    assert astuple(found) == pytest.approx(astuple(expected), rel=1e-12, abs=1e-9)
    assert expected.bytes == pytest.approx(found.bytes, rel=1e-12)
    assert expected.scalars == pytest.approx(found.scalars, rel=1e-12)


def test_the_costs_in_the_page_of_methods_are_those_of_the_formula() -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    rows = {
        row[0]: row[1:] for row in re.findall(r"^\| (K = \d+) \| " + r"([\d,–]+) \| " * 7 + r"([\d,]+) \|$", page, re.M)
    }
    for K in (1, 10):
        wanted = []
        for method, seeding in (*(("decomfl", s.value) for s in Seeding), *((m, "per-step") for m in OTHERS)):
            if method == "baffle" and K > 1:
                wanted.append("–")
                continue
            config = TrainConfig(clients=100, sampled=10, rounds=1000, local_steps=K, seeds=seeding).but(method)
            wanted.append(f"{expected_traffic(config, 28_938).bytes:,.0f}")
        assert list(rows[f"K = {K}"]) == wanted


OTHERS = ("baffle", "fedcom", "fedavg")


@pytest.mark.parametrize(("M", "m"), [(3, 1), (3, 3), (10, 4), (100, 1)])
@pytest.mark.parametrize("seeding", Seeding)
def test_scalars_and_seeds_are_those_of_the_traffic(M: int, m: int, seeding: Seeding) -> None:
    K, P, R = 2, 3, 40
    run = {"clients": M, "sampled": m, "rounds": R, "local_steps": K, "perturbations": P, "perturbation_schedule": {}}
    traffic = expected_traffic(config("decomfl", **run, seeds=seeding.value), 1)
    found = expected_numbers(R, M=M, m=m, K=K, P=P, seeding=seeding)
    assert (found.up, found.down) == pytest.approx((traffic.up_scalars, traffic.down_scalars), rel=1e-12)
    without = expected_traffic(config("decomfl", **run, seeds="per-run"), 1)
    told = expected_numbers(R, M=M, m=m, K=K, P=P, seeding=Seeding.PER_RUN)
    ever = 1 - (1 - m / M) ** R
    assert told.seeds == pytest.approx(ever)
    if not seeding.needs_run_seed:
        run_seed = ever * (HEADER_BYTES + SEED_BYTES)
        assert SEED_BYTES * found.seeds == pytest.approx(traffic.down_bytes - without.down_bytes + run_seed, rel=1e-12)


def test_what_travels_is_table_1_but_for_the_last_lag_and_the_seeds_of_plans() -> None:
    M, m, K, P, R = 100, 10, 2, 5, 10_000
    found = expected_numbers(R, M=M, m=m, K=K, P=P)
    values = {"M": M, "m": m, "K": K, "P": P}
    assert M * found.up / R == pytest.approx(value_of(TABLE_1["DeComFL"].uplink, values))
    down = value_of(TABLE_1["DeComFL"].downlink, values)
    assert M * (found.down + found.seeds) / R == pytest.approx(down + m * K * P, rel=2e-3)
    assert M * (found.down + found.seeds) / R > 1.04 * down


@pytest.mark.parametrize("name", TABLE_1)
def test_complexities_are_a_rounds_scalars_times_the_rounds(name: str) -> None:
    row = TABLE_1[name]
    for each, total in ((row.uplink, row.uplink_complexity), (row.downlink, row.downlink_complexity)):
        assert (each * row.rounds / total).simplify().is_number
