"""An option of a command."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["option"]


def option(text: str, default: object = None, *, panel: str | None = None) -> Any:
    """An option with its default in its help, where typer would write a backslash before it; panel is its group."""
    said = text if default is None else f"{text} [default: {default}]"
    return typer.Option(help=said, show_default=False, rich_help_panel=panel)
