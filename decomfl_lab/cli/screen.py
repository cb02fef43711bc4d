"""What a command says of itself: help that fits a screen, names that complete, a hint for another library's words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import click

from decomfl_lab.datasets import DATA_NAMES
from decomfl_lab.errors import require
from decomfl_lab.models import MODEL_NAMES
from decomfl_lab.options import WORDS

LINES = 60
"""The most lines of a --help, at 80 columns."""
COMPLETED = {"model": MODEL_NAMES, "data": DATA_NAMES, "device": ("cpu", "cuda", "auto")}
"""The names that a shell completes after an option."""


class Screened(click.Command):
    """A command whose --help has at most ``LINES`` lines; what it leaves out is in --help-all, in groups.

    The group of an option is its attribute ``group``. Those without one, or in the one of the first option, are
    the usual ones. A help that fits shows all of them; one that does not shows the usual ones, if need be by the first
    sentence of what is said of each, and the first paragraph of what is said of the command.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for param in self.params:
            if names := COMPLETED.get(param.name or ""):
                param._custom_shell_complete = lambda _, __, typed, names=names: [
                    name for name in names if name.startswith(typed)
                ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --help-all."""
        return [*super().get_params(ctx), _HELP_ALL]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments; an unknown option is told what it is called here."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = f"--{WORDS.get(error.option_name.lstrip('-'))}"
            if any(meant in param.opts for param in self.params):
                message = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
                raise click.NoSuchOption(error.option_name, message, ctx=ctx) from None
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write as much as fits: all, else the usual options, else these in brief."""
        for usual, brief in ((False, ()), (True, ()), (True, ("options",)), (True, ("options", "text"))):
            tried = ctx.make_formatter()
            self._write(ctx, tried, usual, brief)
            if _ALL in ctx.meta or lines_of(tried.getvalue()) <= LINES:
                break
        formatter.write(tried.getvalue())

    def _write(self, ctx: click.Context, formatter: click.HelpFormatter, usual: bool, brief: Sequence[str]) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        first = getattr(options[0], "group", "")
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            name, record = getattr(param, "group", ""), param.get_help_record(ctx)
            if isinstance(param, click.Argument):  # of which click tells nothing
                record = param.make_metavar(ctx), getattr(param, "help", "")
            if record is None or not record[1] or (usual and name not in ("", first)) or param is _HELP_ALL:
                continue
            group = name or ("Options" if isinstance(param, click.Option) else "Arguments")
            flags, text = record
            if "options" in brief:  # the first sentence, and the default
                help_, mark, default = text.partition("[default:")
                text = re.split(r"(?<=\.)\s+(?=[A-Z])", help_)[0].strip() + (f" {mark}{default}" if mark else "")
            groups.setdefault(group, []).append((flags, text))
        self.format_usage(ctx, formatter)
        if self.help:
            # Indented lines, which are examples and formulas, stay as they are; in brief there is the first paragraph.
            parts: list[str] = []
            paragraphs = re.split(r"\n\s*\n", self.help)
            for indented, group_of in groupby(paragraphs, key=lambda paragraph: paragraph.startswith(" ")):
                block = list(group_of)
                if indented:
                    parts.append("\b\n" + "\n".join(block))
                elif "text" not in brief:
                    parts += block
                elif not parts:
                    parts.append(block[0])
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text("\n\n".join(parts))
        for group, rows in groups.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        self.format_epilog(ctx, formatter)
        if usual:
            formatter.write_paragraph()
            formatter.write_text("--help-all lists every option, in groups, with all that is said of each.")


def lines_of(text: str) -> int:
    """The lines that a text takes at 80 columns."""
    return sum(max(1, -(-len(line) // 80)) for line in text.rstrip("\n").split("\n"))


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_ALL = f"{__name__}.all"
_HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show every option, in groups, and exit.",
)


# Groups of commands that entry points name: a command is loaded when it is run, or to list it with its help.

COMMANDS = "decomfl.commands"
"""The group of entry points that are commands, by which layers above contribute what this one need not know."""
ARGUMENTS = "decomfl_lab.arguments"
"""The key of click's ``Context.meta`` under which the command line stands."""


class LazyGroup(Screened, click.Group):
    """A group of commands that entry points name: the one that is run is loaded alone, for a list all of them are."""

    def __init__(
        self, name: str, entries: Iterable[EntryPoint], sections: Mapping[str, Sequence[str]] = {}, **attributes: Any
    ) -> None:
        """A group whose help lists commands under the titles ``sections``, and those of none under "Commands"."""
        self.entries = {entry.name: entry for entry in entries}
        # Nothing but names: by them click says which is meant where one is mistyped.
        super().__init__(name, {entry: click.Command(entry) for entry in self.entries}, **attributes)
        self._sections = sections

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments; none are --help, and help before others is --help after them."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] in ([], ["help"]) else args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of those whose package is here, as a wheel has no benchmarks."""
        return sorted(name for name, entry in self.entries.items() if find_spec(entry.module.split(".")[0]) is not None)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name; None if there is none, InputError if its package is not here."""
        if cmd_name not in self.entries:
            return None
        where = "be run in a clone of the project (make setup, .venv/bin/decomfl), as the wheel lacks its package"
        require(cmd_name in self.list_commands(ctx), f"decomfl {cmd_name}", where, "a wheel")
        command = self.entries[cmd_name].load()
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section a title, with the whole first sentence of every command."""
        available = self.list_commands(ctx)
        commands = {name: command for name in available if (command := self.get_command(ctx, name)) is not None}
        rest = sorted(commands.keys() - {name for names in self._sections.values() for name in names})
        width = max(map(len, self.entries))
        for title, names in {**self._sections, "Commands": rest}.items():
            listed = [name for name in names if name in commands]
            rows = [(f"{name:<{width}}", commands[name].get_short_help_str(1000)) for name in listed]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
