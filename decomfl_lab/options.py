"""One way to say an option: a field of a frozen dataclass, for Python, for files and for every command.

    @dataclass(frozen=True, kw_only=True)
    class CheckOptions:
        statement: str = option(REQUIRED, "The name of a bound.", argument=True)
        seed: int = option(0, "The seed of searches.", ge=0)

``cli.command`` makes a command of such a class and a function of it. A field that is itself such a class stands for its
fields, so that options which belong together are written once.

An option says its range itself. Python, files, flags and peers are all held to it by ``Option.require``, and
``struct_of`` has it for those who read our files, as JSON Schema writes it. What options have to do with each other is
said by the class that has them.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, defstruct

from decomfl_lab.errors import InputError, is_number, require, require_choice, require_int, shown
from decomfl_lab.plugins import OWN, is_named
from decomfl_lab.storage.tables import table_beside

REQUIRED: Final[Any] = dataclasses.MISSING
"""The default of an option that must be given."""
TRUST_CODE: Final = (
    "Run the code that a file names as module:function, for its model, data, loss or method. Without it only "
    "what you name yourself is run."
)
"""The help of --trust-code."""
MOST_THREADS: Final = 1024
"""The most threads that a system can have."""
_LONG = 1 << 63
WORDS = {word: option for option, words in table_beside(__name__, "words.toml").items() for word in words}
"""The paper's symbols and other libraries' words for options, and what they are called here."""


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
    symbol: str = ""  # the paper's symbol, which errors have beside the name
    of: Any = None  # the type of the value, or of a schedule's numbers, where the default does not tell it
    choices: Collection[str] = ()  # the values that it may have, where they are few
    own: str = ""  # what a function of the user's own is one of, where that may be given instead; the help says so
    ge: float | None = None  # the least number
    gt: float | None = None  # or the number that it is above
    le: float | None = None  # the largest number
    lt: float | None = None  # or the number that it is below

    @property
    def is_schedule(self) -> bool:
        """Whether the value is a schedule, {round: value}."""
        return isinstance(self.default, dict)

    @cached_property
    def kind(self) -> Any:
        """The type of the value: dict[int, float] for a schedule, tuple[str, ...] for several values."""
        if self.is_schedule:
            return dict[int, self.of]  # type: ignore[name-defined]
        return type(self.default) if isinstance(self.default, bool | int | float | str) else self.of

    def title(self, name: str) -> str:
        """What errors call the option of this name: as its flag does, with the paper's symbol."""
        flag = self.flag.partition(" ")[0].lstrip("-")
        return f"{flag or name} {self.symbol}".strip()

    def require(self, name: str, value: Any) -> None:
        """InputError unless the value is of the option's type and in its range.

        Args:
            name: What the option is called here, perhaps with the file that it stands in.
            value: The value; None is one where it is the default.
        """
        named = bool(self.own) and is_named(value)
        if not named and not (value is None and self.default is None):
            self._require(name, value, self.kind)

    def _require(self, name: str, value: Any, kind: Any) -> None:
        if kind is float:
            require(isinstance(value, int | float) and is_number(value), name, self._range, value)
            high_enough = (self.ge is None or value >= self.ge) and (self.gt is None or value > self.gt)
            low_enough = (self.le is None or value <= self.le) and (self.lt is None or value < self.lt)
            require(high_enough and low_enough, name, self._range, value)
        elif kind is int:
            least = -_LONG if self.ge is None else int(self.ge)
            require_int(name, value, least, None if self.le is None else int(self.le))
        elif kind is bool:
            require(isinstance(value, bool), name, "be True or False", value)
        elif get_origin(kind) is tuple:
            for part in value:
                self._require(name, part, get_args(kind)[0])
        elif get_origin(kind) is dict:
            rule = "be {round: value, ...}" + " or file.py:name" * bool(self.own)
            require(isinstance(value, Mapping), name, rule, value)
            for r, part in value.items():
                require_int(f"round in {name}", r, 1)
                self._require(f"{name} at round {r}", part, get_args(kind)[1])
        elif self.choices:
            require_choice(name, value, [*self.choices, *["file.py:name"] * bool(self.own)])
        elif kind is str:
            require(isinstance(value, str), name, "be text", value)

    @property
    def told(self) -> str:
        """The help, and what else may be given."""
        return f"{self.help} Or file.py:name of a function of {self.own}." if self.own else self.help

    @cached_property
    def _range(self) -> str:
        """What a number must be, in words."""
        below = next((bound for bound in (self.le, self.lt) if bound is not None), None)
        above = next((bound for bound in (self.ge, self.gt) if bound is not None), None)
        if below is not None:
            return f"be in {'(' if self.ge is None else '['}{above:g}, {below:g}{')' if self.le is None else ']'}"
        if above is not None:
            return f"be a finite number {'above' if self.ge is None else 'of at least'} {above:g}"
        return "be a finite number"

    def read(self, name: str, value: Any) -> Any:
        """The value, of what JSON or TOML has for it; errors are those of ``require``.

        A whole number stands for a number, and a schedule has text for its rounds.
        """
        if self.kind is float and type(value) is int:
            require(abs(value) < _LONG, name, "be a number of 64 bits", value)
            value = float(value)
        elif self.is_schedule and isinstance(value, Mapping):
            try:
                value = {int(r): v for r, v in value.items()}
            except ValueError:
                raise InputError(f"{name} must have whole rounds as keys, got {shown(list(value))}") from None
        self.require(name, value)
        return value

    @property
    def written(self) -> Any:
        """The type of the value as files have it, with its range and its help."""
        kind = get_args(self.kind)[1 if self.is_schedule else 0] if get_args(self.kind) else self.kind
        limits = {name: getattr(self, name) for name in ("ge", "gt", "le", "lt")}
        if kind is int:  # a range beyond 64 bits is told by the help alone
            limits = {name: int(own) for name, own in limits.items() if own is not None and abs(own) < _LONG}
        elif self.choices and not self.own:
            kind = Literal[*map(str, self.choices)]
        elif kind not in (bool, float, str):
            kind = str
        about: dict[str, Any] = {"description": self.told, "extra": {"group": self.group}}
        meta = Meta(**limits if kind in (int, float) else {}, **about)
        own: Any = Annotated[kind, meta]
        if self.is_schedule:
            # The name of a function has no pattern: msgspec 0.22 corrupts memory by a union with a text that has one.
            return Annotated[dict[str, own] | str, Meta(**about)] if self.own else dict[str, own]
        if self.own:
            pattern = f"^({'|'.join([*map(str, self.choices), f'{OWN} .+', '.+:.+'])})$"
            return Annotated[str, Meta(pattern=pattern, **about)]
        return list[own] if get_args(self.kind) else own


@dataclass(frozen=True)
class Codec:
    """How a field that is an object of one of a few classes is written as plain values, and read."""

    title: str  # what errors call it
    options: Mapping[str, Option]
    # of each class the values that tell it from those below, and the options that are its fields, in their order
    kinds: Mapping[type, tuple[Mapping[str, Any], Sequence[str]]]

    def join(self, values: Mapping[str, Any]) -> Any:
        """The object of these values, one for each option."""
        fitting = ((kind, names) for kind, (fixed, names) in self.kinds.items() if fixed.items() <= values.items())
        kind, names = next(fitting)
        return kind(*(values[name] for name in names))

    def split(self, value: Any) -> dict[str, Any]:
        """Inverse of ``join``; InputError for an object of one's own, of a derived class too, which may do more."""
        if type(value) not in self.kinds:
            raise InputError(f"{self.title} must be one of the lab's to be written to a file, got {value!r}")
        fixed, names = self.kinds[type(value)]
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        plain = {name: field.default for name, field in self.options.items()}
        return {**plain, **fixed, **dict(zip(names, fields, strict=True))}


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


@cache
def own_options(kind: type[Any]) -> dict[str, Option]:
    """The options among the fields of a dataclass, by their names."""
    options = {field.name: field.metadata["option"] for field in dataclasses.fields(kind) if "option" in field.metadata}
    if any(option.kind is None for option in options.values()):  # what a default does not tell, the field's type does
        types = get_type_hints(kind)
        for name, option in options.items():
            kinds = get_args(types[name]) if isinstance(types[name], UnionType) else (types[name],)  # X | None
            kinds = tuple(field for field in kinds if field is not NoneType)
            if option.kind is None:
                options[name] = dataclasses.replace(option, of=kinds[0] if len(kinds) == 1 else Any)
    return options


def declared(kind: type) -> Iterator[tuple[str, Option]]:
    """Name and option of every field of a dataclass, and of those of its fields that are such classes."""
    options, types = own_options(kind), get_type_hints(kind)
    for attribute in dataclasses.fields(kind):
        if attribute.name in options:
            yield attribute.name, options[attribute.name]
        elif dataclasses.is_dataclass(types[attribute.name]):
            yield from declared(types[attribute.name])


def require_options(given: Any) -> None:
    """InputError unless every option of a dataclass is of its type and in its range."""
    kind: Any = type(given)
    for name, option in own_options(kind).items():
        value = getattr(given, name)
        if value is not option.default:  # which is sound; most are left at it, and settings are made by the thousand
            option.require(option.title(name), value)


def struct_of(name: str, options: Mapping[str, Option]) -> type[Struct]:
    """What files have of options, as a type: ``msgspec.json.schema`` writes it down, and ``msgspec.convert`` reads."""
    fields: list[Any] = []
    for key, option in options.items():
        if option.default is REQUIRED:
            fields.append((key, option.written))
        else:
            default = str(option.default) if isinstance(option.default, Path) else option.default
            fields.append((key, option.written if default is not None else option.written | None, default))
    return defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def require_option(what: str, name: str, known: Iterable[str]) -> None:
    """InputError where ``what`` (an option, a key of a file) is unknown; it names what is meant, or is nearest."""
    names = list(known)
    meant = WORDS.get(name.replace("_", "-"), "").replace("-", "_")
    if name not in names and meant in names:
        raise InputError(f"{what} must be one of its own, got {name!r} (did you mean {meant}?)")
    require_choice(what, name, names)
