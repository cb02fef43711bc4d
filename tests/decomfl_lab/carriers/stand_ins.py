"""Modules that stand in for the libraries of other people's engines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any


@contextmanager
def standing_in(module: str, stand_ins: dict[str, Any]) -> Iterator[ModuleType]:
    """A module of ours, imported anew, where these are what it imports: {name: content, or None for not installed}.

    Afterwards these names are what they were before.
    """
    own = [*stand_ins, module]
    before = {name: sys.modules.pop(name) for name in own if name in sys.modules}
    for name, content in stand_ins.items():
        made = None if content is None else ModuleType(name)
        if made is not None:
            made.__dict__.update(content)
        sys.modules[name] = made  # type: ignore[assignment]
    try:
        yield import_module(module)
    finally:
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(before)


class CollabCallError(Exception):
    """What NVFlare raises where a site does not answer."""


def nvflare(clients: Any = ()) -> dict[str, Any]:
    """What our carrier needs of NVFlare to be imported, whose job has these clients."""
    collab = SimpleNamespace(clients=clients, publish=lambda function: function, main=lambda function: function)
    fakes = {"CollabCallError": CollabCallError, "CollabRecipe": object, "collab": collab}
    return {"nvflare": {}, "nvflare.collab": fakes}
