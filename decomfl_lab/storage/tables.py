"""What lies beside the modules that use it: tables as TOML, and texts."""

import tomllib
from importlib.resources import files
from typing import Any


def text_beside(module: str, name: str) -> str:
    """The text of the file of this name in the folder of a module (its ``__name__``)."""
    return files(module.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")


def table_beside(module: str, name: str) -> dict[str, Any]:
    """The tables of a TOML file in the folder of a module."""
    return tomllib.loads(text_beside(module, name))
