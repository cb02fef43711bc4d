"""What a method is: its options, the federation that it trains with, and what that sends.

A method is one frozen dataclass in a file of its own. Its fields are its options, and no others can be given to it;
each has a help text and a group, so that the command line and the documentation need nothing else (``_template``).
Modules of methods import torch, and what imports it, where a federation is made: options and their help need neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.federations.setting import Federation, TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic
from decomfl_lab.options import Option, option, own_options, require_option, require_options
from decomfl_lab.plugins import OwnFunction
from decomfl_lab.records.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train, with its options as fields."""

    name: ClassVar[str] = ""  # what it is called on the command line and in files
    gradients: ClassVar[bool] = False  # whether it needs gradients, and not losses alone
    alone: ClassVar[bool] = False  # whether it is one agent with all the data
    tunable: ClassVar[bool] = False  # whether its learning rate, and P, may be searched (``runs.tuning``)

    lr: float = option(0.001, "The learning rate η.", "optimizer", symbol="η", gt=0)
    lr_schedule: Mapping[int, float] | Callable[[int, float], float] = option(
        {}, "η from a round on, as ROUND=VALUE,...: e.g. 500=0.0005.", "optimizer", of=float, gt=0, own="(round, lr)"
    )

    def __new__(cls, **options: Any) -> Self:
        """InputError for an option that the method does not have."""
        fields = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            require_option(f"option of {cls.name or cls.__name__}", name, fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, declared in own_options(kind).items():
            if declared.own:
                object.__setattr__(self, name, OwnFunction.of(getattr(self, name), name, declared.own))
        require_options(self)

    @property
    def sizes(self) -> dict[str, int]:
        """K and P, as far as the method has them."""
        known = {"K": "local_steps", "P": "perturbations"}
        return {symbol: getattr(self, name) for symbol, name in known.items() if name in self.options()}

    @property
    def replays(self) -> bool:
        """Whether clients hold the model, to the bit, because they have replayed the records themselves."""
        return False

    @property
    def drifts(self) -> bool:
        """Whether clients' models are the server's up to rounding only (column drift)."""
        return False

    def replaying(self) -> Self:
        """The same method, whose clients replay what they are sent wherever that is left to a simulation."""
        return self

    def averaged(self) -> Self:
        """The same method, whose server takes the mean of what clients send wherever that is an option."""
        return self

    def require_carried(self, by: object) -> None:
        """InputError where something of the clients could not be elsewhere (``federations.carrier.Elsewhere``)."""

    def require_compute(self, compute: str) -> None:
        """InputError where losses cannot be computed in these numbers."""
        rounded = compute == "bfloat16"
        rule = "be float32 for a method that needs gradients"
        require(not (rounded and self.gradients), "compute", rule, self.name)

    def rehearsal(self, lr: float, P: int) -> Method:  # noqa: ARG002
        """The method as its rounds are rehearsed (``runs.tuning``): the same way for x, and the curvature is measured.

        Args:
            lr: The learning rate of the rehearsal.
            P: Its directions.

        Raises:
            InputError: If its learning rate cannot be found so; the message names the option that is in the way.
        """
        raise InputError(f"lr η must be a number for {self.name}, whose clients measure no curvature, got auto")

    @property
    def eta(self) -> Schedule[float]:
        """η over the rounds."""
        rates: Any = self.lr_schedule
        return Schedule(self.lr, own=rates) if isinstance(rates, OwnFunction) else Schedule(self.lr, rates)

    def federation(self, setting: TrainingSetting) -> Federation:
        """Server and clients at round 0."""
        raise NotImplementedError

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """What a client and the server send each other in a whole run, in expectation over who is sampled.

        Args:
            cohort: How many rounds and clients.
            d: Parameters, kept in float32.
        """
        raise NotImplementedError

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options as plain values, in order."""
        options: dict[str, Option] = {}
        for field in dataclasses.fields(cls):
            codec = field.metadata.get("codec")
            options |= dict(codec.options) if codec else {field.name: field.metadata["option"]}
        return options

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The method with these plain values, and defaults for the others."""
        return cls().but(values)

    def but(self, values: Mapping[str, Any]) -> Self:
        """The same method with these plain values, or whole objects, instead of its own."""
        objects = {field.name for field in dataclasses.fields(self)}
        for name in values:
            require_choice(f"option of {self.name}", name, [*self.options(), *({name} & objects)])
        changes = {}
        for field in dataclasses.fields(self):
            codec: Any = field.metadata.get("codec")
            changed = {name: values[name] for name in (codec.options if codec else ()) if name in values}
            if field.name in values and (not codec or not isinstance(values[field.name], str)):
                changes[field.name] = values[field.name]
            elif changed:
                for name, value in changed.items():
                    codec.options[name].require(codec.options[name].title(name), value)
                made = codec.join(codec.split(getattr(self, field.name)) | changed)
                written, rule = codec.split(made), f"be left out with {made}, which has no use for it"
                for name, value in changed.items():
                    require(written[name] == value, name, rule, value)
                changes[field.name] = made
        return dataclasses.replace(self, **changes)

    def plain(self) -> dict[str, Any]:
        """The options' values, as files have them."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            codec, value = field.metadata.get("codec"), getattr(self, field.name)
            values |= codec.split(value) if codec else {field.name: value}
        return {name: str(value) if isinstance(value, OwnFunction) else value for name, value in values.items()}
