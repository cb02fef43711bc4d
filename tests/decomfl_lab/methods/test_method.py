"""What a method is: options of its own and no others, plain values, a formula, a source, what it sends."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab import InputError, Method, TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.methods._template import FedSgd
from decomfl_lab.methods.registry import METHODS, find_method, name_of
from decomfl_lab.noise import Format
from decomfl_lab.runs.configuration import config_from_mapping
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses, rows_of

ROWS = rows_of(__file__)
EACH = pytest.mark.parametrize("kind", [*METHODS.values(), FedSgd], ids=lambda kind: kind.name)


@EACH
def test_every_option_has_a_sentence_and_every_method_a_formula_and_a_source(kind: type[Method]) -> None:
    for name, option in kind.options().items():
        assert re.match(r"[A-ZαβληK0-9(].*\.$", option.help.replace("torch:", "Torch:")), (name, option.help)
    doc = kind.__doc__ or ""
    assert re.match(r"[A-Z].*\.\n\n        \S", doc), "a line, then a formula"
    assert "Source: " in doc


@EACH
def test_plain_values_give_the_method_back(kind: type[Method]) -> None:
    assert kind.of(kind().plain()) == kind()
    assert kind.of({"lr": 0.5}) == replace(kind(), lr=0.5)
    with pytest.raises(InputError, match=rf"option of {kind.name} must be one of .*, got 'mood'"):
        kind.of({"mood": 1})


@dataclass(frozen=True, kw_only=True)
class Plain(lab.DeComFL):
    """DeComFL whose rule and P are no options."""

    rule: ClassVar[lab.Sgd] = lab.Sgd()  # type: ignore[misc]
    perturbations: ClassVar[int] = 7  # type: ignore[misc]


@pytest.mark.parametrize("value", [{"rule": lab.Sgd()}, {"rule": "sgd"}, {"momentum": 0.0}, {"perturbations": 7}])
def test_a_field_that_a_class_fixes_keeps_its_value_and_is_no_option(value: dict[str, object]) -> None:
    assert (Plain(lr=0.5).rule, Plain(lr=0.5).perturbations) == (lab.Sgd(), 7)
    assert not {"rule", "momentum", "grid", "perturbations"} & (Plain.options().keys() | Plain().plain().keys())
    for refused in (lambda: Plain(**value), lambda: Plain.of(value), lambda: TrainConfig(Plain(), **value)):
        with pytest.raises(InputError, match=rf"option of decomfl must be one of .*, got '{next(iter(value))}'"):
            refused()
    with pytest.raises(InputError, match="mu μ must be a finite number above 0"):
        replace(Plain(mu=0.5), mu=0.0)


RULES = [
    lab.Sgd(0.1),
    lab.Momentum(0.5, "paper", 0.1),
    lab.SignSgd(0.2),
    lab.AdaMM(0.8, 0.99, 1e-6, 0.1),
    lab.GridSgd(-10),
    lab.LowPrecision(lab.AdaMM(), Format.FLOAT16, "nearest"),
]
AGGREGATIONS = [lab.Mean(), lab.ClippedMean(0.5), lab.Median(), lab.TrimmedMean(2), lab.Krum(3)]


@pytest.mark.parametrize(
    "given", [*({"rule": rule} for rule in RULES), *({"aggregation": own} for own in AGGREGATIONS)]
)
def test_every_rule_and_aggregation_is_written_and_read_back(given: dict[str, Any]) -> None:
    method = lab.DeComFL(**given)
    assert lab.DeComFL.of(method.plain()) == method
    assert config_from_mapping(TrainConfig(method).to_dict(), "the test") == TrainConfig(method)


class OwnRule(lab.Sgd):
    """A rule of one's own, which may do more."""


def test_an_update_rule_of_ones_own_trains_but_is_not_written() -> None:
    config = TrainConfig(lab.DeComFL(rule=OwnRule()), data="digits", model="logistic", rounds=1)
    assert len(lab.Run(config).train()) == 1
    with pytest.raises(InputError, match="rule must be one of the lab's to be written to a file"):
        config.to_dict()


@refuses(
    ("median", r"aggregation must be a rule, as lab.Mean\(\) or"),
    (lab.Median, r"aggregation must be a rule, as lab.Mean\(\) or"),
)
def test_the_name_of_an_aggregation_or_its_class_is_none(wrong: Any) -> None:
    lab.DeComFL(aggregation=wrong)


def test_another_method_keeps_what_both_have() -> None:
    run = TrainConfig(local_steps=3, momentum=0.5, lr=0.2, perturbations=7, clients=5, sampled=2)
    other = run.but("fedavg", lr=0.1)
    assert (other.local_steps, other.momentum, other.lr, other.clients) == (3, 0.5, 0.1, 5)
    with pytest.raises(AttributeError, match="perturbations is no option of a run, nor of its method fedavg"):
        _ = other.perturbations
    assert (run.but("mezo").clients, run.but("mezo").sampled) == (1, 1)


def test_the_template_is_a_method_and_sends_what_it_says() -> None:
    assert find_method(name_of(FedSgd())) is FedSgd
    config = TrainConfig(
        FedSgd(clip=0.01, lr=0.5), data="digits", model="logistic", clients=4, sampled=4, rounds=2, batch_size=50
    )
    start = Prepared.of(config, load_dataset("digits"))
    federation, layout = start.federation(), start.layout
    start = federation.x.clone()
    for _ in range(config.rounds):
        federation.advance()
    assert 0 < float(torch.linalg.vector_norm(federation.x - start)) <= 2 * 0.5 * 0.01 * 1.0001
    expected = config.method.traffic(config.cohort, layout.d)
    assert federation.ledger.bytes == 4 * expected.bytes
    assert federation.ledger.scalars == 4 * expected.scalars
    with pytest.raises(InputError, match="clip c must be a finite number above 0, got 0"):
        FedSgd(clip=0.0)


def test_a_method_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="method must be a name or module:Class"):
        find_method("pathlib:Path")


# --- directions of low rank, which version 0.1 had --------------------------------------------------------------------


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
