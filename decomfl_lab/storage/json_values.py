"""Values as JSON has them, which has neither NaN nor infinity: what ``--json`` prints, of every command."""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The value ready for ``json.dumps``: lists for tuples and arrays, None for numbers that are not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print the value as ``plain`` JSON on stdout; characters that a terminal would act upon, or lacks, are escaped."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = json.dumps(plain(value), ensure_ascii=not is_unicode, allow_nan=False, indent=indent)
    print("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))
