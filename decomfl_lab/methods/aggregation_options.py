"""How a round's mean is made, as options: what a client weighs, and rules of aggregation as plain values."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from decomfl_lab.errors import InputError
from decomfl_lab.options import Codec, Option, option
from decomfl_lab.protocol.aggregation import Aggregation, ClippedMean, Krum, Mean, Median, TrimmedMean, Weighting


def weighting_option() -> Any:
    """The field ``weighting`` of a method."""
    return option(
        Weighting.CLIENTS.value,
        "What a client weighs in a round's mean: clients (as much as every other) or examples (its number of examples, "
        "which it says once, as FedAvg is defined elsewhere).",
        choices=tuple(Weighting),
    )


_KINDS: dict[str, Any] = {"mean": Mean, "clipped": ClippedMean, "median": Median, "trimmed": TrimmedMean, "krum": Krum}
"""Their fields are options of the same names."""


class _Aggregation:
    """See ``protocol.aggregation``."""

    options: Mapping[str, Option] = {
        "aggregation": Option(
            "mean",
            "The rule that makes a round's scalars of the clients': mean, or one that liars cannot move far: clipped "
            "(mean of replies of bounded norm), median, trimmed (mean without the extremes) or krum.",
            choices=tuple(_KINDS),
        ),
        "tolerated": Option(1, "The number f of liars among the sampled clients that trimmed and krum tolerate.", ge=0),
        "clip": Option(
            0.0,
            "The norm c to which clipped clips a client's scalars; 0 for the median of the norms.",
            symbol="c",
            ge=0,
        ),
    }

    def join(self, values: Mapping[str, Any]) -> Aggregation:
        """See ``Codec``."""
        kind = _KINDS[values["aggregation"]]
        made: Aggregation = kind(**{own.name: values[own.name] for own in fields(kind)})
        return made

    def split(self, value: Any) -> dict[str, Any]:
        """See ``Codec``; InputError for a rule of one's own."""
        plain = {name: each.default for name, each in self.options.items()}
        for name, kind in _KINDS.items():
            if type(value) is kind:  # and no class derived from it, which may do more
                return plain | {"aggregation": name} | asdict(value)
        raise InputError(f"aggregation must be one of the lab's to be written to a file, got {value!r}")


AGGREGATION: Codec = _Aggregation()
