"""``decomfl schema``: what a file of ours, or a command, may have in it, for programs that write or read them."""

import json
from dataclasses import dataclass

import click
import msgspec

from decomfl_lab.cli.command import OptionsCommand, command
from decomfl_lab.errors import require_choice
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.options import Option, declared, option, struct_of
from decomfl_lab.runs.configuration import run_options
from decomfl_lab.storage.outside import FILES


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The options of ``decomfl schema``."""

    name: str = option("", "A file, a method or a command. [default: list them]", argument=True, metavar="NAME")


@command
def schema(options: SchemaOptions) -> None:
    """Print the JSON Schema of a file, a run or a command.

    It has the names, their types and ranges, and what they are. A method's name stands for the file of its run,
    config.toml; a command's for its flags.

      decomfl schema              the names

      decomfl schema log          what a log says of its run

      decomfl schema fedavg       a run's configuration

      decomfl schema kappa        the flags of a command
    """
    from decomfl_lab.cli.main import application

    app, commands = application(), dict[str, type]()
    context = click.Context(app)
    names = app.list_commands(context)
    for name in app.entries:
        loaded = app.get_command(context, name) if name in names else None
        if isinstance(loaded, OptionsCommand):
            commands[name] = loaded.kind
    if not options.name:
        print(f"files: {', '.join(FILES)}\nmethods: {', '.join(METHODS)}\ncommands: {', '.join(commands)}")
        return
    name = require_choice("name", options.name, [*FILES, *METHODS, *commands])
    if name in FILES:
        kind = FILES[name]
    elif name in METHODS:
        named = Option(name, "The method.", choices=(name,))
        kind = struct_of(name, {"method": named} | run_options() | METHODS[name].options())
    else:
        kind = struct_of(name, dict(declared(commands[name])))
    # Patterns end at \\Z in Python, and at $ in JSON Schema.
    print(json.dumps(msgspec.json.schema(kind), indent=1, ensure_ascii=False).replace(r"\\Z", "$"))
