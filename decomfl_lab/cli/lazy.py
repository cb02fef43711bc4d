"""Groups of commands that are loaded when they are run, and listed with help that is read from their source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from decomfl_lab.cli.layers import is_here, load_entry
from decomfl_lab.cli.screen import Screened

__all__ = ["ARGUMENTS", "Contribution", "LazyGroup"]

ARGUMENTS = "decomfl_lab.arguments"
"""The key of click's ``Context.meta`` under which the command line stands."""


class Contribution(click.Command):
    """A command that an entry point names: what can be said of it before it is loaded."""

    def __init__(self, entry: EntryPoint) -> None:
        super().__init__(entry.name, hidden=not is_here(entry))
        self._entry = entry

    def get_short_help_str(self, limit: int = 45) -> str:
        """The beginning of its help, at most ``limit`` characters."""
        written = _written_help(self._entry)
        known = self.load() if written is None else click.Command(self.name, help=written)
        return known.get_short_help_str(limit)

    def load(self) -> click.Command:
        """The command itself, of a click command or a function with typer's annotations.

        Raises:
            InputError: If its layer is not installed.
        """
        import typer

        class Function(Screened, typer.core.TyperCommand):
            """The command that a function is."""

        typer.core.HAS_RICH = False  # help is plain text: no backslashes before brackets, which are for rich
        found = load_entry(self._entry, self._entry.name)
        if isinstance(found, click.Command):
            return found
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=Function)(found)
        return typer.main.get_command(app)


class LazyGroup(Screened, click.Group):
    """A group of contributions: the one that is run is loaded, for a list of all of them none is."""

    def __init__(
        self, name: str, entries: Iterable[EntryPoint], sections: Mapping[str, Sequence[str]] = {}, **attributes: Any
    ) -> None:
        """A group whose help lists commands under the titles ``sections``, and those of none under "Commands"."""
        super().__init__(name, {entry.name: Contribution(entry) for entry in entries}, **attributes)
        self._sections = sections

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments; none are --help, and help before others is --help after them."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] in ([], ["help"]) else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write a section a title, with the whole first sentence of every command."""
        named = [name for names in self._sections.values() for name in names]
        rest = sorted(self.commands.keys() - set(named))
        width = max(map(len, self.commands))
        for title, names in {**self._sections, "Commands": rest}.items():
            known = [self.commands[name] for name in names if name in self.commands]
            rows = [(f"{each.name:<{width}}", each.get_short_help_str(1000)) for each in known if not each.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What click finds for the arguments, loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Contribution) else command, rest


def _written_help(entry: EntryPoint) -> str | None:
    """The help of an entry as its source has it; None where only running the source tells.

    That is the docstring of the function of the name, or, where the name is given the value of a call, the literal
    ``help`` or ``short_help`` of the call or the docstring of the function that is its first argument.
    """
    spec = find_spec(entry.module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    docs = {node.name: ast.get_docstring(node) for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=entry.attr)], value=ast.Call(args=args, keywords=keywords)):
                for keyword in keywords:
                    match keyword:
                        case ast.keyword(arg="help" | "short_help", value=ast.Constant(value=str(text))):
                            return text
                return docs.get(args[0].id) if args and isinstance(args[0], ast.Name) else None
    return docs.get(entry.attr)
