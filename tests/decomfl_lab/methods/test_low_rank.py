"""Directions of low rank, which version 0.1 had: its other runs are what they were, and those with them are refused."""

import tomllib
from pathlib import Path

import pytest

from decomfl_lab.methods.registry import METHODS
from decomfl_lab.runs.config import TrainConfig, config_from_mapping
from tests.refusals import refuses

OF_VERSION_0_1 = tomllib.loads(Path(__file__).with_name("identities.toml").read_text(encoding="utf-8"))
"""The identity of each method's run with defaults, where it had the option rank."""


def test_the_identity_of_every_method_is_what_it_was_with_the_option() -> None:
    assert {name: TrainConfig(name).identity("00").hex() for name in METHODS} == OF_VERSION_0_1


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_rank_one_is_read_and_dropped(method: str, lenient: bool) -> None:
    values = {"method": method, "draws": "stream"}
    found = config_from_mapping({**values, "rank": 1}, "config.toml", lenient=lenient)
    assert found == config_from_mapping(values, "config.toml", lenient=lenient)
    assert "rank" not in found.to_dict()


@refuses(
    ({"rank": 2}, "rank in config.toml must be 1, as only version 0.1 of decomfl-lab has low-rank directions, got 2"),
    ({"rank": True}, "rank in config.toml must be 1, as only version 0.1 of decomfl-lab has .*, got True"),
    ({"distribution": "low-rank"}, "distribution must be one of .*, as only version 0.1 .*, got 'low-rank'"),
    ({"distribution": "low-rank", "rank": 1}, "distribution must be one of .*, as only version 0.1 .*, got 'low-r"),
    ({"method": "fedavg", "rank": 2}, "rank in config.toml must be 1, as only version 0.1 of decomfl-lab has"),
)
@pytest.mark.parametrize("lenient", [True, False])
def test_directions_of_low_rank_are_refused_in_a_line_that_names_the_version(
    values: dict[str, object], lenient: bool
) -> None:
    config_from_mapping(values, "config.toml", lenient=lenient)
