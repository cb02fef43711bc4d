"""One way to say an option: a field of a frozen dataclass, for Python, for files and for every command.

    @dataclass(frozen=True, kw_only=True)
    class CheckOptions:
        statement: str = option(REQUIRED, "The name of a bound.", argument=True)
        seed: int = option(0, "The seed of searches.")

``cli.command`` makes a command of such a class and a function of it. A field that is itself such a class stands for its
fields, so that options which belong together are written once.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, get_type_hints

REQUIRED: Final[Any] = dataclasses.MISSING
"""The default of an option that must be given."""
TRUST_CODE: Final = (
    "Run the code that a file names as module:function, for its model, data, loss or method. Without it only "
    "what you name yourself is run."
)
"""The help of --trust-code."""


@dataclass(frozen=True)
class Option:
    """A value that Python, a file or a flag gives."""

    default: Any  # its default, or ``REQUIRED``
    help: str  # what it is, in sentences; the default is added where they do not tell it
    group: str = ""  # the title under which the full help lists it; "" for the usual ones
    flag: str = ""  # how it is written, where that is not --name
    argument: bool = False  # whether it stands without a flag
    metavar: str | None = None  # what the help shows for the value, where that is not its type
    earlier: Any = None  # the value of runs of versions that did not have the option, where that is not the default
    rare: bool = False  # whether files leave it out at its default, as those of versions that did not have it do

    @property
    def is_schedule(self) -> bool:
        """Whether the value is a schedule, {round: value}."""
        return isinstance(self.default, dict)


class Codec(Protocol):
    """How a field that is an object is written as plain values, and read."""

    options: Mapping[str, Option]

    def join(self, values: Mapping[str, Any]) -> Any:
        """The object of these values, one for each option."""

    def split(self, value: Any) -> dict[str, Any]:
        """Inverse of ``join``."""


def option(default: Any, help_: str = "", group: str = "", *, codec: Codec | None = None, **more: Any) -> Any:
    """A field of a dataclass with its default, its help and the group that the help lists it in.

    Args:
        default: The default; ``REQUIRED`` for none.
        help_: What the option is.
        group: See ``Option``.
        codec: Where the field is an object: how its plain values are read and written. These are then the options.
        more: The other attributes of ``Option``.
    """
    metadata = {"codec": codec} if codec else {"option": Option(default, help_, group, **more)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(kind: type) -> Iterator[tuple[str, Any, Option]]:
    """Name, type and option of every field of a dataclass, and of those of its fields that are such classes."""
    types = get_type_hints(kind)
    for own in dataclasses.fields(kind):
        if "option" in own.metadata:
            yield own.name, types[own.name], own.metadata["option"]
        elif dataclasses.is_dataclass(types[own.name]):
            yield from declared(types[own.name])
