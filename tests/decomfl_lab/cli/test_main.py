"""The command line as a new user meets it: help that teaches, JSON on stdout, one-line errors with exit code 2."""

import json
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, read_config
from tests.cases import refused, sampled
from tests.decomfl_lab.runs.variants import OTHERS, VARIANTS

TINY = ["train", "--data", "digits", "--model", "logistic", "--clients", "6", "--sampled", "2", "--rounds", "4"]


def test_of_fewer_clients_than_are_usually_sampled_all_are() -> None:
    assert [TrainConfig(clients=M).sampled for M in (1, 4, 9, 10, 11)] == [1, 4, 9, 10, 10]
    assert main([*TINY[:5], "--clients", "3", "--rounds", "1"]) == 0


def test_the_examples_of_the_help_of_train_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    examples = [line.split("  ")[0].split() for line in lines if line.startswith("decomfl train")]
    assert len(examples) == 6
    for _, *argv in examples:
        needs_more = {"--help", "run.toml"} & set(argv)
        assert needs_more or main([*argv, "--rounds", "1", "--test-examples", "10"]) == 0, argv


def flags_of(variant: dict[str, Any]) -> str:
    """A variant of a run as a line of flags; one agent alone has no cohort, and an empty schedule no flag."""
    words = []
    for name, value in variant.items():
        if isinstance(value, dict):
            value = ",".join(f"{r}={each}" for r, each in value.items())
        if value != "" and not ("mezo" in variant.values() and name in ("clients", "sampled")):
            words.append(f"--{name.replace('_', '-')}" + f" {value}" * (value is not True))
    return " ".join(words)


BY_NAME = [*({"method": method} for method in METHODS), *({"seeds": seeding.value} for seeding in Seeding)]


@pytest.mark.parametrize("flags", sampled(map(flags_of, [*BY_NAME, *VARIANTS, *OTHERS]), 20))
def test_every_method_and_variant_trains_from_the_command_line(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    method = METHODS[flags.split()[1] if flags.startswith("--method") else "decomfl"]
    drawn = ["--perturbations", "3"] if "perturbations" in method.options() else []
    given = TINY[:5] if method.alone else TINY  # without --clients and --sampled
    assert main([*given, "--rounds", "5", *drawn, "--batch-size", "8", "--json", *flags.split()]) == 0
    last = json.loads(capsys.readouterr().out)["metrics"][-1]
    assert last["round"] == 5
    assert 0 < last["train_loss"] < 10
    assert (last["wire_bytes"] > 0) == ("mezo" not in flags)
    assert ("drift" in last) == ("sync" in flags)


def test_a_copy_of_the_code_that_is_not_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("decomfl_lab.cli.main.entry_points", lambda group: [])
    assert "decomfl-lab must be installed (pip install -e . in its folder)" in refused(capsys, "train")


def test_configuration_round_trips_through_toml(tmp_path: Path) -> None:
    config = TrainConfig(lr_schedule={5: 0.1}, perturbation_schedule={7: 40}, seed=2**63, lr=1e-7)
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml())
    assert config_from_mapping(read_config(path), "c.toml") == config
    assert config.fingerprint(data="a", code="b") != config.fingerprint(data="a", code="c")
