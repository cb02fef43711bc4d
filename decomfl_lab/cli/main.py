"""The command ``decomfl``: it gathers the layers' sub-commands; bad input is one line and exit code 2."""

import errno
import io
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import click
from click.shell_completion import get_completion_class, shell_complete

from decomfl_lab import __version__
from decomfl_lab.cli.screen import ARGUMENTS, COMMANDS, LazyGroup
from decomfl_lab.errors import InputError, LabWarning, brief, require, shown
from decomfl_lab.interrupts import Interrupted, interrupt
from decomfl_lab.storage.tables import table_beside

COMPLETE = "_DECOMFL_COMPLETE"
"""The variable by which a shell asks what a word can be completed to."""
_TEXTS = table_beside(__name__, "main.toml")
JOBS: dict[str, str] = _TEXTS["jobs"]
"""What the lab is for, with a command to begin with."""


def application() -> LazyGroup:
    """The command with its sub-commands, none of which is loaded yet."""
    commands = entry_points(group=COMMANDS)
    need = "be installed (pip install -e . in its folder), as its commands are entry points of the package"
    require(bool(commands), "decomfl-lab", need, "none")
    begin = [f"  {job:<28} decomfl {words}" for job, words in JOBS.items()]
    app = LazyGroup(
        "decomfl",
        commands,
        _TEXTS["sections"],
        help="\n".join(["Federated learning where clients send only scalars, exact to the bit.\n", *begin]),
        epilog=_TEXTS["notes"],
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_completion(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        if value is not None and not ctx.resilient_parsing:
            shell = get_completion_class(value)
            assert shell is not None
            click.echo(shell(application(), {}, "decomfl", COMPLETE).source())
            ctx.exit()

    completion = click.option(
        "--show-completion",
        type=click.Choice(["bash", "zsh", "fish"]),
        expose_value=False,
        is_eager=True,
        callback=show_completion,
        metavar="SHELL",
        help="Print the script of a shell's completion, and stop.",
    )
    version = click.version_option(
        __version__, message=f"decomfl-lab {__version__}", help="Print the version and stop."
    )
    return completion(version(app))


def _show_warning(
    otherwise: Callable[..., None], message: Warning | str, category: type[Warning], *where: object
) -> None:
    """Our own warnings as lines, as those of the log are; others as ``otherwise`` has them."""
    if issubclass(category, LabWarning):
        logging.getLogger("decomfl_lab").warning(message)
    else:
        otherwise(message, category, *where)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``decomfl argv``; returns the exit code.

    0 is for done, 1 for a check that failed, 2 for bad input, 130 for interrupted by Ctrl-C and 143 by SIGTERM.
    """
    code, refusal = 2, None
    args = list(sys.argv[1:] if argv is None else argv)
    alone = argv is None  # in a process of our own
    try:
        if alone:
            signal.signal(signal.SIGTERM, interrupt)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(errors="backslashreplace")  # not every encoding has our letters
        for before, text in zip(["", *args], args, strict=False):
            name = before if before.startswith("--") else "arguments"
            require("\0" not in text, name, "have no NUL character", text)  # no file or folder can have it in its name
            require(text != "", name, "not be empty", text)
        command = application()
        if alone and (asked := os.environ.get(COMPLETE)):
            ended: int = shell_complete(command, {}, "decomfl", COMPLETE, asked)
        else:
            logging.basicConfig(format="%(message)s")
            logging.getLogger("decomfl_lab").setLevel(logging.INFO)
            try:
                with command.make_context("decomfl", args) as context:  # command.main makes an exit of every interrupt
                    context.meta[ARGUMENTS] = args
                    command.invoke(context)
                ended = 0
            except click.exceptions.Exit as done:
                ended = done.exit_code
        print(end="", flush=True)  # here, where a full disk can still be told
        code = ended
    except click.ClickException as error:
        refusal = brief(" ".join(error.format_message().split()), 500)
    except InputError as error:
        refusal = str(error)
    except KeyboardInterrupt as error:
        print(f"decomfl: {str(error) or 'interrupted; nothing new was kept'}", file=sys.stderr)
        code = 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
            _drop_output()  # the reader of our output went away, as `head` does; rich makes a SystemExit of it
            code = 141
        else:  # of a user's code, as our commands end in another way
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name} line {last.lineno}"
            refusal = f"code must return, and not end the process, got SystemExit in {place}"
    except OSError as error:  # of a file that is named, or of the disk; others are a fault of ours
        if error.filename is not None:
            rule, got = "files and folders must be as the command needs them", shown(str(error.filename))
        elif error.errno in _FULL:
            rule, got = "there must be room for what is printed and written", "none"
            _drop_output()
        else:
            raise
        refusal = f"{rule}, got {got} ({error.strerror})"
    except MemoryError as error:
        refusal = f"the work must fit into memory, got {brief(str(error)) or 'too much'}"
    if refusal is not None:
        print(f"decomfl: error: {refusal}", file=sys.stderr)
    if alone:
        sys.exit(code)
    return code


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _drop_output() -> None:
    """Have what is still to be printed go nowhere: Python would try once more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
