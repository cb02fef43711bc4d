"""The option that says what a client weighs in a round's mean, of every method whose server takes one."""

from typing import Any

from decomfl_lab.errors import require_choice
from decomfl_lab.options import option
from decomfl_lab.protocol.weights import Weighting


def weighting_option() -> Any:
    """The field ``weighting`` of a method."""
    return option(
        Weighting.CLIENTS.value,
        "What a client weighs in a round's mean: clients (as much as every other) or examples (its number of examples, "
        "which it says once, as FedAvg is defined elsewhere).",
    )


def require_weighting(value: str) -> Weighting:
    """What clients are weighed by; InputError if it is neither."""
    return Weighting(require_choice("weighting", value, tuple(Weighting)))
