"""The rows of a test that are data, in a TOML file beside it that is called like it."""

import tomllib
from pathlib import Path
from typing import Any


def rows_of(test: str) -> dict[str, Any]:
    """The tables of the file beside a test, whose own path (``__file__``) is given."""
    return tomllib.loads(Path(test).with_suffix(".toml").read_text(encoding="utf-8"))
