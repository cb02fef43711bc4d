"""Update rules as plain values: how a file or a flag names one, and how it is written there again."""

from collections.abc import Mapping
from typing import Any

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise import Format
from decomfl_lab.options import Codec, Option
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, UpdateRule

DEFAULT_RULE = Momentum(0.9, "torch", 1e-5)
"""The authors', as their logs have it."""

_GROUP = "optimizer"


class _Rule:
    """Rules in the precision of x_0."""

    options: Mapping[str, Option] = {
        "rule": Option(
            "sgd",
            "The update rule of replicas: sgd (momentum β), sign (ZO-SignSGD, no β) or adamm (ZO-AdaMM, β₁ = β).",
            _GROUP,
            choices=("sgd", "sign", "adamm"),
        ),
        "momentum": Option(0.9, "The momentum β in [0, 1); 0 is plain SGD.", _GROUP, symbol="β", ge=0, lt=1),
        "momentum_form": Option(
            "torch", "torch: m = βm + g; paper: m = βm + (1-β)g.", _GROUP, choices=("torch", "paper")
        ),
        "weight_decay": Option(1e-5, "The weight decay λ.", _GROUP, ge=0),
        "beta2": Option(0.999, "The β₂ of adamm.", _GROUP, ge=0, lt=1),
        "epsilon": Option(1e-8, "The ε of adamm.", _GROUP, gt=0),
    }

    def join(self, values: Mapping[str, Any]) -> UpdateRule:
        """See ``Codec``."""
        kind, form = values["rule"], values["momentum_form"]
        beta, decay = values["momentum"], values["weight_decay"]
        if kind == "sign":
            return SignSgd(decay)
        if kind == "adamm":
            return AdaMM(beta, values["beta2"], values["epsilon"], decay)
        return Momentum(beta, form, decay) if beta else Sgd(decay)

    def split(self, value: UpdateRule) -> dict[str, Any]:
        """See ``Codec``; InputError for a rule of one's own."""
        plain = {name: each.default for name, each in self.options.items()}
        known = type(value) in (Sgd, Momentum, SignSgd, AdaMM)  # and no class derived from them, which may do more
        match value if known else None:
            case Sgd(decay):
                return plain | {"momentum": 0.0, "weight_decay": decay}
            case Momentum(beta, form, decay):
                return plain | {"momentum": beta, "momentum_form": form, "weight_decay": decay}
            case SignSgd(decay):
                return plain | {"rule": "sign", "weight_decay": decay}
            case AdaMM(beta, beta2, epsilon, decay):
                own = {"momentum": beta, "beta2": beta2, "epsilon": epsilon, "weight_decay": decay}
                return plain | {"rule": "adamm"} | own
        raise InputError(f"rule must be one of the lab's to be written to a file, got {value!r}")


class _ReplicaRule(_Rule):
    """Rules of replicas that follow records: also in 16 bits, or on a grid."""

    options: Mapping[str, Option] = {
        **_Rule.options,
        "precision": Option(
            "float32",
            "What replicas are kept in: float32, bfloat16 or float16.",
            _GROUP,
            choices=("float32", *Format),
        ),
        "rounding": Option(
            "stochastic",
            "How 16-bit replicas are rounded after every step: stochastic (seeded), compensated or nearest.",
            _GROUP,
            choices=("stochastic", "compensated", "nearest"),
        ),
        "grid": Option(
            0,
            "Below 0 the model is kept on multiples of 2^GRID by plain SGD, so that local steps are undone by "
            "arithmetic; 0 is off.",
            _GROUP,
            ge=-100,
            le=0,
        ),
    }

    def join(self, values: Mapping[str, Any]) -> UpdateRule:
        """See ``Codec``."""
        rule = super().join(values)
        if values["grid"]:
            require(values["rule"] == "sgd", "rule", "be sgd on the grid", values["rule"])
            require(values["precision"] == "float32", "precision", "be float32 on the grid", values["precision"])
            return GridSgd(values["grid"])
        if values["precision"] == "float32":
            return rule
        return LowPrecision(rule, Format(values["precision"]), values["rounding"])

    def split(self, value: UpdateRule) -> dict[str, Any]:
        """See ``Codec``."""
        match value:
            case LowPrecision(rule, dtype, rounding):
                return self.split(rule) | {"precision": str(dtype), "rounding": rounding}
            case GridSgd(exponent):
                return super().split(Sgd()) | {"precision": "float32", "rounding": "stochastic", "grid": exponent}
        return super().split(value) | {"precision": "float32", "rounding": "stochastic", "grid": 0}


def require_rule(value: Any) -> None:
    """InputError unless the value is an update rule, and neither a name of one nor its class."""
    require(isinstance(value, UpdateRule), "rule", "be an update rule, as lab.Momentum(0.9) or lab.SignSgd()", value)


RULE: Codec = _Rule()
REPLICA_RULE: Codec = _ReplicaRule()
