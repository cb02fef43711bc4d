"""Compiled kernels on disk, which are used only while every file of kernels is as it was.

numba compiles a function again when its own file has changed. But kernels of other files are compiled into it: after an
update that changes one of these alone, a cache would go on giving what the old kernel gave. Every kernel takes ``njit``
from here.
"""

# mypy: disable-error-code="attr-defined,misc,no-untyped-call,no-any-return,no-untyped-def"
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
from numba.core import caching

PACKAGE: Final = Path(__file__).parents[1]
KERNELS: Final = ("noise", "engines/kernels")
"""Folders whose files have kernels."""


@cache
def digest() -> bytes:
    """Of all files of kernels."""
    files = sorted(path for folder in KERNELS for path in (PACKAGE / folder).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()


class _Stamp:
    """The stamp of a kernel of this package is the digest of all files of kernels."""

    def get_source_stamp(self) -> bytes:
        return digest()

    @classmethod
    def from_function(cls, function, file):
        return super().from_function(function, file) if Path(file).is_relative_to(PACKAGE) else None


class Chosen(_Stamp, caching.UserProvidedCacheLocator):
    """In the folder that NUMBA_CACHE_DIR names."""


class Beside(_Stamp, caching.InTreeCacheLocator):
    """In __pycache__."""


class Apart(_Stamp, caching.UserWideCacheLocator):
    """In the user's cache, where __pycache__ cannot be written."""


_LOCATORS = [f"{__name__}.{locator.__name__}" for locator in (Chosen, Beside, Apart)]
_LOCATORS += [locator.__name__ for locator in caching.CacheImpl._locator_classes]  # of functions of other packages
if not getattr(numba.config, "CACHE_LOCATOR_CLASSES", ""):  # NUMBA_CACHE_LOCATOR_CLASSES, since numba 0.62
    numba.config.CACHE_LOCATOR_CLASSES = ",".join(_LOCATORS)

njit: Any = numba.njit
"""numba's decorator, without a type of its own."""
