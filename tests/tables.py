"""What of a test is data: rows in a TOML file beside it that is called like it, and programs and users' files."""

import tomllib
from pathlib import Path
from typing import Any


def rows_of(test: str) -> dict[str, Any]:
    """The tables of the file beside a test, whose own path (``__file__``) is given."""
    return tomllib.loads(Path(test).with_suffix(".toml").read_text(encoding="utf-8"))


def text_beside(test: str, name: str) -> str:
    """A file beside a test, whose own path (``__file__``) is given: a program that it starts, or a user's module."""
    return Path(test).with_name(name).read_text(encoding="utf-8")
