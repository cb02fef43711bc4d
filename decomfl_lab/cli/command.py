"""Commands that are made from a dataclass of options and a function of it."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

from decomfl_lab.cli.screen import Screened
from decomfl_lab.options import REQUIRED, Option, declared, require_options

T = TypeVar("T")


def integer(text: str) -> int:
    """1206590, 1_206_590 or 1e6; ValueError for what is no integer."""
    if "e" not in text.lower():
        return int(text)
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


class Whole(click.ParamType[int]):
    """A whole number, also as 1e6."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return integer(value) if isinstance(value, str) else int(value)
        except ValueError:
            self.fail(f"{value!r} is not a valid integer.", param, ctx)


WHOLE = Whole()


class OptionsCommand(Screened):
    """A command of one dataclass of options."""

    def __init__(self, run: Callable[[Any], None], kind: type, **attributes: Any) -> None:
        def call(**values: Any) -> None:
            self.run(made_of(kind, values))

        super().__init__(params=flags_of(kind), callback=call, help=inspect.getdoc(run), **attributes)
        self.run = run  # what it does with them
        self.kind = kind  # the dataclass


def command(run: Callable[[Any], None]) -> OptionsCommand:
    """The command that a function of one dataclass of options is, as ``check(options: CheckOptions)``.

    The function's name is the command's, and its docstring the help.
    """
    (given,) = inspect.signature(run).parameters
    kind = get_type_hints(run)[given]
    return OptionsCommand(run, kind, name=run.__name__.strip("_").replace("_", "-"))


def beside(run: Callable[[Any, dict[str, Any]], None], kind: type) -> Callable[..., None]:
    """A callback ``run(options, given)`` of all flags: the dataclass ``kind``, and the other flags that were given."""
    names = {name for name, _ in declared(kind)}

    def call(**values: Any) -> None:
        others = {name: value for name, value in values.items() if name not in names and value is not None}
        run(made_of(kind, values), others)

    return call


def flags_of(kind: type, *, unset: bool = False) -> list[click.Parameter]:
    """The flags and arguments of a dataclass of options; where they are left ``unset``, None is for not given."""
    return flags(declared(kind), unset=unset)


def flags(options: Iterable[tuple[str, Option]], *, unset: bool = False) -> list[click.Parameter]:
    """The flags and arguments of options by their names; see ``flags_of``. Schedules are text."""
    params: list[click.Parameter] = []
    for name, option in options:
        type_ = str if option.is_schedule else option.kind
        many = get_origin(type_) is tuple
        type_ = get_args(type_)[0] if many else type_
        attributes: dict[str, Any] = {
            "type": {Path: click.Path(path_type=Path), int: WHOLE, Any: str}.get(type_, type_),
            "metavar": option.metavar,
            "required": option.default is REQUIRED and not unset,
        }
        if option.default is not REQUIRED or unset:
            attributes["default"] = None if unset else option.default
        if option.argument:
            argument: Any = click.Argument([name], **attributes, nargs=-1 if many else 1)
            argument.help = option.help
            params.append(argument)
            continue
        dashed = f"--{name.replace('_', '-')}"
        if type_ is bool:
            attributes |= {"is_flag": True, "type": None}
            dashed = f"{dashed}/--no-{dashed[2:]}" if option.default or unset else dashed
        names = option.flag.split() or [dashed]
        # The help tells the default where it does not do so by itself.
        silent = option.default in (None, "", (), {}, REQUIRED) or option.default is False or "[default:" in option.help
        text = option.told if silent else f"{option.told} [default: {option.default}]"
        flag: Any = click.Option([*names, name], **attributes, multiple=many, help=text)
        flag.group = option.group.capitalize() if option.group.islower() else option.group  # of the help
        params.append(flag)
    return params


def made_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass of these values, with the dataclasses among its fields."""
    types, arguments = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if "option" in field.metadata:
            arguments[field.name] = values[field.name]
        elif dataclasses.is_dataclass(types[field.name]):
            arguments[field.name] = made_of(types[field.name], values)
    made = kind(**arguments)
    require_options(made)
    return made
