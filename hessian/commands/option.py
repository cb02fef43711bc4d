"""An option of a command."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["option"]


def option(text: str, default: object = None) -> Any:
    """An option with its default in its help; typer would write a backslash before it."""
    return typer.Option(help=text if default is None else f"{text} [default: {default}]", show_default=False)
