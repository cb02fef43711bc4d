"""What a command says of itself: help that fits a screen, names that complete, a hint for another library's words."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from decomfl_lab.datasets import DATA_NAMES
from decomfl_lab.models import MODEL_NAMES
from decomfl_lab.words import WORDS

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
                told = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
                raise click.NoSuchOption(error.option_name, told, ctx=ctx) from None
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
            if record is None or not record[1] or (usual and name not in ("", first)) or param is _HELP_ALL:
                continue
            group = name or ("Options" if isinstance(param, click.Option) else "Arguments")
            flags, text = record
            if "options" in brief:  # the first sentence, and the default
                said, mark, default = text.partition("[default:")
                text = re.split(r"(?<=\.)\s+(?=[A-Z])", said)[0].strip() + (f" {mark}{default}" if mark else "")
            groups.setdefault(group, []).append((flags, text))
        self.format_usage(ctx, formatter)
        if self.help:
            # Indented lines, which are examples and formulas, stay as they are; in brief there is the first paragraph.
            parts: list[str] = []
            paragraphs = re.split(r"\n\s*\n", self.help)
            for indented, group_of in groupby(paragraphs, key=lambda paragraph: paragraph.startswith(" ")):
                own = list(group_of)
                if indented:
                    parts.append("\b\n" + "\n".join(own))
                elif "text" not in brief:
                    parts += own
                elif not parts:
                    parts.append(own[0])
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
