"""Groups of commands that entry points name: a command is loaded when it is run, or to list it with its help."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import click

from decomfl_lab.cli.screen import Screened

COMMANDS = "decomfl.commands"
"""The group of entry points that are commands, by which layers above contribute what this one need not know."""
ARGUMENTS = "decomfl_lab.arguments"
"""The key of click's ``Context.meta`` under which the command line stands."""


class Contribution(click.Command):
    """A command that an entry point names: what can be said of it before it is loaded."""

    def __init__(self, entry: EntryPoint) -> None:
        super().__init__(entry.name)
        self._entry = entry

    def get_short_help_str(self, limit: int = 45) -> str:
        """The beginning of its help, at most ``limit`` characters."""
        return self.load().get_short_help_str(limit)

    def load(self) -> click.Command:
        """The command itself."""
        found = self._entry.load()
        assert isinstance(found, click.Command)
        return found


class LazyGroup(Screened, click.Group):
    """A group of contributions: the one that is run is loaded alone, for a list all of them are."""

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
            rows = [(f"{each.name:<{width}}", each.get_short_help_str(1000)) for each in known]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What click finds for the arguments, loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Contribution) else command, rest
