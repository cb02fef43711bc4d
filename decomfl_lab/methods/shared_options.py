"""Options that several methods have: rules as plain values, as files and flags have them, and what a client weighs."""

from collections.abc import Mapping
from typing import Any

from decomfl_lab.errors import require
from decomfl_lab.noise import Format
from decomfl_lab.options import Codec, Option, option
from decomfl_lab.protocol.aggregation import ClippedMean, Krum, Mean, Median, OwnRule, TrimmedMean, Weighting
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, UpdateRule
from decomfl_lab.storage.tables import table_beside

DEFAULT_RULE = Momentum(0.9, "torch", 1e-5)
"""The authors', as their logs have it."""

_GROUP = "optimizer"
HELP = table_beside(__name__, "options.toml")
"""What the options are that several methods have."""
_RULE_OPTIONS = {
    "rule": Option("sgd", HELP["rule"], _GROUP, choices=("sgd", "sign", "adamm")),
    "momentum": Option(0.9, "The momentum β in [0, 1); 0 is plain SGD.", _GROUP, symbol="β", ge=0, lt=1),
    "momentum_form": Option("torch", "torch: m = βm + g; paper: m = βm + (1-β)g.", _GROUP, choices=("torch", "paper")),
    "weight_decay": Option(1e-5, "The weight decay λ.", _GROUP, ge=0),
    "beta2": Option(0.999, "The β₂ of adamm.", _GROUP, ge=0, lt=1),
    "epsilon": Option(1e-8, "The ε of adamm.", _GROUP, gt=0),
}
_ROUNDINGS = ("stochastic", "compensated", "nearest")
_REPLICA_OPTIONS = {
    **_RULE_OPTIONS,
    "precision": Option("float32", HELP["precision"], _GROUP, choices=("float32", *Format)),
    "rounding": Option("stochastic", HELP["rounding"], _GROUP, choices=_ROUNDINGS),
    "grid": Option(0, HELP["grid"], _GROUP, ge=-100, le=0),
}
_RULES: dict[type, tuple[dict[str, Any], tuple[str, ...]]] = {
    Sgd: ({"rule": "sgd", "momentum": 0.0}, ("weight_decay",)),
    Momentum: ({"rule": "sgd"}, ("momentum", "momentum_form", "weight_decay")),
    SignSgd: ({"rule": "sign"}, ("weight_decay",)),
    AdaMM: ({"rule": "adamm"}, ("momentum", "beta2", "epsilon", "weight_decay")),
}


class _ReplicaRule(Codec):
    """Rules of replicas that follow records: also in 16 bits, or on a grid."""

    def join(self, values: Mapping[str, Any]) -> UpdateRule:
        if values["grid"]:
            require(values["rule"] == "sgd", "rule", "be sgd on the grid", values["rule"])
            require(values["precision"] == "float32", "precision", "be float32 on the grid", values["precision"])
            return GridSgd(values["grid"])
        rule: UpdateRule = super().join(values)
        if values["precision"] == "float32":
            return rule
        return LowPrecision(rule, Format(values["precision"]), values["rounding"])

    def split(self, value: Any) -> dict[str, Any]:
        if isinstance(value, LowPrecision):
            return super().split(value.rule) | {"precision": str(value.dtype), "rounding": value.rounding}
        return super().split(value)


RULE = Codec("rule", _RULE_OPTIONS, _RULES)
REPLICA_RULE = _ReplicaRule(
    "rule", _REPLICA_OPTIONS, {**_RULES, GridSgd: ({"momentum": 0.0, "weight_decay": 0.0}, ("grid",))}
)


def require_rule(value: Any) -> None:
    """InputError unless the value is an update rule, and neither a name of one nor its class."""
    require(isinstance(value, UpdateRule), "rule", "be an update rule, as lab.Momentum(0.9) or lab.SignSgd()", value)


_AGGREGATIONS = ("mean", "clipped", "median", "trimmed", "krum")
AGGREGATION = Codec(
    "aggregation",
    {
        "aggregation": Option("mean", HELP["aggregation"], choices=_AGGREGATIONS, own="(replies)"),
        "tolerated": Option(1, HELP["tolerated"], ge=0),
        "clip": Option(0.0, HELP["clip"], symbol="c", ge=0),
    },
    {
        Mean: ({"aggregation": "mean"}, ()),
        ClippedMean: ({"aggregation": "clipped"}, ("clip",)),
        Median: ({"aggregation": "median"}, ()),
        TrimmedMean: ({"aggregation": "trimmed"}, ("tolerated",)),
        Krum: ({"aggregation": "krum"}, ("tolerated",)),
        OwnRule: ({}, ("aggregation",)),
    },
)


def weighting_option() -> Any:
    """The field ``weighting`` of a method."""
    return option(Weighting.CLIENTS.value, HELP["weighting"], choices=tuple(Weighting))
