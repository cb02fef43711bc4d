"""The libraries of the extra ``llm``, imported only where a language model is wanted."""

from __future__ import annotations

import importlib
from types import ModuleType

from decomfl_lab.errors import InputError

__all__ = ["llm_library"]


def llm_library(name: str, wanted_by: str) -> ModuleType:
    """The module ``name``, one of those that the extra ``llm`` installs.

    Args:
        name: As in ``import``.
        wanted_by: What needs it, for the error: "model facebook/opt-125m".

    Raises:
        InputError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{wanted_by} needs the extra llm: pip install 'decomfl-lab[llm]' (no module {error.name})"
        ) from None
