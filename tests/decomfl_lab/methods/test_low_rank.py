"""Directions of low rank, which version 0.1 had: its other runs are what they were, and those with them are refused."""

import pytest

from decomfl_lab.methods.registry import METHODS
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping
from tests.refusals import refuses
from tests.tables import rows_of

ROWS = rows_of(__file__)


def test_the_identity_of_every_method_is_what_it_was_with_the_option() -> None:
    assert {name: TrainConfig(name).identity("00").hex() for name in METHODS} == ROWS["identities"]


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_rank_one_is_read_and_dropped(method: str, lenient: bool) -> None:
    values = {"method": method, "draws": "stream"}
    found = config_from_mapping({**values, "rank": 1}, "config.toml", lenient=lenient)
    assert found == config_from_mapping(values, "config.toml", lenient=lenient)
    assert "rank" not in found.to_dict()


@refuses(*ROWS["refused"])
@pytest.mark.parametrize("lenient", [True, False])
def test_directions_of_low_rank_are_refused_in_a_line_that_names_the_version(
    values: dict[str, object], lenient: bool
) -> None:
    config_from_mapping(values, "config.toml", lenient=lenient)
