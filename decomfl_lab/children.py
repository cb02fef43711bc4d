"""Processes of Python that are started from here: what lies in the current folder is no library of theirs.

``python -m`` and ``python -c`` have the current folder first on their path, so that a file ``re.py`` there is run in
place of Python's own. A user's modules are found there all the same, after all others (``plugins.named``).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_SAFE: Final = "PYTHONSAFEPATH"


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that is started here: that of this one, with changes."""
    return {**os.environ, _SAFE: "1", **(changes or {})}


@contextmanager
def safely() -> Iterator[None]:
    """Let libraries that start processes by themselves start them in ``environment()``."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before
