"""Directions of low rank, which version 0.1 had: its other runs are what they were, and those with them are refused."""

import pytest

from decomfl_lab.methods.registry import METHODS
from decomfl_lab.runs.config import TrainConfig, config_from_mapping
from tests.refusals import refuses

OF_VERSION_0_1 = {
    "decomfl": "8176fe46cf0fc2995351ba85003e35f9",
    "decomfl-projection": "4b01ace9bedff95cbfe9561778ebd36d",
    "hiso": "1e49e4712cd77a562392f7bb103e6f3e",
    "fzoo": "f78c631618fc09dac307ea4aab1885aa",
    "feedsign": "60d5aec65b0d234d4b23c29359354435",
    "fedkseed": "89a2371bd30fff7efbf06b0346641281",
    "fedzo": "ae8f52699d1adaa0284202d11ebcf8b0",
    "fedzo-projection": "26a45dc4ac62f95f3c275202154d01d6",
    "fedavg": "fba4ec2e66d753953e80855ab940715f",
    "fedcom": "301c45a92c12a3b252ac06274b224840",
    "fedavg-topk": "d93ffef98608486f5114d46fbd71570c",
    "baffle": "4be9c65aaaedbcfcd179f5017a6f1e00",
    "mezo": "a15a287d24b62091b3643c6e390b7271",
}
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
