"""Flags of a command that are made from a table, and not written out in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

__all__ = ["Command", "flag", "with_flags"]

Command = Callable[..., None]


def flag(name: str, kind: type, *declarations: str, **option: Any) -> inspect.Parameter:
    """An optional flag; None where it is not given.

    Args:
        name: Name of the value.
        kind: Type of the value.
        declarations: How the flag is written, as --sigma-G; typer's own way (small letters) if there are none.
        option: What ``typer.Option`` takes besides.
    """
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, typer.Option(*declarations, **option)],
    )


def with_flags(command: Command, flags: Sequence[inspect.Parameter], *, after: int = 0) -> Command:
    """``command(given, ...)`` with these flags, those that were given as a dict in its first parameter.

    Args:
        command: The function; its own options follow its first parameter.
        flags: The flags in the order of the help.
        after: How many of the command's own options the help has before them.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def wrapper(**values: Any) -> None:
        given = {each.name: values.pop(each.name) for each in flags}
        command({name: value for name, value in given.items() if value is not None}, **values)

    parameters = [*own[:after], *flags, *own[after:]]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    return wrapper
