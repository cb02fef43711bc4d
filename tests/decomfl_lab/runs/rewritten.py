"""A log that somebody has written anew, so that its chain is true, whatever it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decomfl_lab.protocol import log as logs
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.runs.folder import LOG_FILE
from tests.decomfl_lab.protocol.chained import chained


def rewritten(
    folder: Path,
    path: Path,
    change: Callable[[LogEntry], LogEntry] = lambda entry: entry,
    *,
    version: int = logs.VERSION,
    **header: Any,
) -> Path:
    """The log of a folder with other entries, or with other values in its header, of which None drops a key."""
    with RunLog.open(folder / LOG_FILE, write=False) as log:
        said = {key: value for key, value in (log.header | header).items() if value is not None}
        bodies = [logs._body(change(entry)) for entry in log.entries()]
        path.write_bytes(chained(json.dumps(said, sort_keys=True).encode(), bodies, log.start, version))
    return path
