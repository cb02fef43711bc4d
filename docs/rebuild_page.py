"""The recorded run of the page that rebuilds a model (docs/_static/rebuild), from a run's folder.

decomfl train --data mnist --model cnn-mnist ... --out RUN
python -m docs.rebuild_page RUN docs/_static/rebuild

It writes mnist.dcl, the log; mnist.json, how the run was made and its accuracies; and mnist.js, both in a form that a
page opened from the disk can read.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from decomfl_lab.files import write_atomically
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.provenance import PROVENANCE_FILE
from decomfl_lab.runs.folder import LOG_FILE, METRICS_FILE

_TEST_IMAGES = 10_000  # those of MNIST's test part


def record(run: Path, folder: Path) -> None:
    """Write the three files of a run on MNIST."""
    rows = pd.read_csv(run / METRICS_FILE)
    with RunLog.open(run / LOG_FILE, write=False) as log:
        images = log.header["config"]["test_examples"] or _TEST_IMAGES
    table = [[int(r), float(accuracy)] for r, accuracy in zip(rows["round"], rows["test_accuracy"], strict=True)]
    made = json.loads((run / PROVENANCE_FILE).read_text(encoding="utf-8"))
    about = {"name": "mnist.dcl", "images": images, "made": made, "table": table}
    content = (run / LOG_FILE).read_bytes()
    write_atomically(folder / "mnist.dcl", content)
    write_atomically(folder / "mnist.json", json.dumps(about, indent=1) + "\n")
    write_atomically(folder / "mnist.js", script(content, about))


def script(content: bytes, about: dict[str, Any]) -> str:
    """The script that gives the page a log and what is known of it."""
    return f"globalThis.recorded = {json.dumps({**about, 'log': base64.b64encode(content).decode()})};\n"


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
