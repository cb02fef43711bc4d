"""Prints what every command's ``--help`` says; ``make golden`` keeps it in help.txt, whose diff is what users read."""

import os
from collections.abc import Iterator

import click

from decomfl_lab.cli.main import application, main


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by the words that call them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, f"{path} {name}")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    for words, _ in list(walk(application(), "decomfl")):
        print(f"$ {words} --help")
        assert main([*words.split()[1:], "--help"]) == 0
        print()
