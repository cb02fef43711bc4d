"""Rows that are kept with the code: what a machine without their data, or without the time, can draw.

``results/<part>-<scale>.csv.gz`` has the rows that a part's ``make`` takes, ``results/<part>-<scale>.json`` where they
come from: the date, the code, how many runs were finished, and every provenance among them.
"""

import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from decomfl_lab.errors import InputError
from decomfl_lab.storage.files import file_digest
from decomfl_lab.storage.provenance import code_version
from paper_repro.workflow import manifest
from paper_repro.workflow.verdicts.claim_table import PARTS, RECORDED, SCALE_NAMES, ClaimOutcome, claim

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Rows:
    """The rows of a part, whether computed here or kept by ``save``."""

    scale: str  # the scale at which they were made
    rows: pd.DataFrame  # those of all runs of the part, up to their last evaluation
    provenance: Sequence[Mapping[str, Any]]  # the provenance of the runs, each once
    date: str = ""  # the day on which they were recorded; "" for rows that are computed here
    code: str = ""  # the versions of the code that made recorded ones
    runs: tuple[int, int] = (1, 1)  # the number of runs that were finished, and that of all

    @property
    def complete(self) -> bool:
        """Whether every run was finished."""
        return self.runs[0] == self.runs[1]

    @property
    def words(self) -> str:
        """Scale, date, code and, where some are missing, how many runs; "" of rows that are computed here."""
        if not self.date:
            return ""
        some = "" if self.complete else f", so far {self.runs[0]} of {self.runs[1]} runs finished"
        return f"recorded on {self.date} at {self.scale} scale by code {self.code}{some}"

    def source(self, part: str) -> str:
        """The name of the file with these rows of a part, and its SHA-256: pictures say it of themselves."""
        if not self.date:
            return f"rows computed, sha256 {hashlib.sha256(self.rows.to_csv(index=False).encode()).hexdigest()}"
        path = RESULTS / f"{part}-{self.scale}.csv.gz"
        return f"{path.name}, sha256 {file_digest(path)}"


def facts_of(provenance: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a page says of runs: the code, and their data, versions, devices and noise, each once."""

    def once(texts: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(texts))

    # A run that several versions of the code took up lists all of them.
    codes = chain.from_iterable(each.get("codes", [each.get("code", "")]) for each in provenance)
    runs = [code for code in codes if code]
    facts = {"code": f"drawn by {code_version()}" + (f", run by {', '.join(dict.fromkeys(runs))}" if runs else "")}
    if provenance:
        facts |= {
            # Runs share data and models, so pieces repeat.
            "data": once(piece for each in provenance for piece in str(each["data"]).split("; ")),
            "versions": once(
                f"Python {each['python']}, torch {each['torch']}, numpy {each['numpy']}"
                + (f", transformers {each['transformers']}" if "transformers" in each else "")
                for each in provenance
            ),
            "device": once(each["device"] for each in provenance),
            "noise": once(
                f"stream version {each['stream_version']}, backend {each['noise_backend']}" for each in provenance
            ),
        }
    return facts


def means(rows: pd.DataFrame) -> dict[str, float]:
    """The mean of arsinh over the finite numbers of every column: it rests on all rows, which no claim does.

    The scale is that of a logarithm, so that numbers of a run which diverged hide no others.
    """
    finite = rows.select_dtypes("number").astype(float).replace([np.inf, -np.inf], np.nan)
    return {str(name): mean for name, mean in np.arcsinh(finite).mean().items() if math.isfinite(mean)}


def save(
    part: str,
    scale: str,
    rows: pd.DataFrame,
    provenance: Sequence[Mapping[str, Any]],
    into: Path,
    runs: tuple[int, int] = (1, 1),
) -> None:
    """Keep the rows of a part; both files are written or neither, and equal rows give equal bytes.

    Lists and mappings among the values are kept as JSON.
    """
    columns = {str(name): column for name, column in rows.items()}
    # CSV has no lists: such a column is written as JSON, and named in the facts to be read back as such.
    nested = [name for name, column in columns.items() if column.map(lambda v: isinstance(v, list | dict)).any()]
    plain = rows.assign(**{name: columns[name].map(lambda v: json.dumps(v, ensure_ascii=False)) for name in nested})
    # Many runs share one provenance.
    distinct = {json.dumps(facts, sort_keys=True): facts for facts in provenance if facts}
    codes = [code for facts in distinct.values() for code in facts.get("codes", [facts.get("code", "unknown")])]
    written = plain.to_csv(index=False)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "code": ", ".join(sorted(set(codes))) or code_version(),
        "finished": runs[0],
        "of": runs[1],
        "json": nested,
        "means": means(pd.read_csv(io.StringIO(written))),  # as they are read: None among numbers is one there
        "provenance": list(distinct.values()),
    }
    facts_json = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
    # Without a time in its head, so that equal rows are equal files.
    content = gzip.compress(written.encode(), mtime=0)
    manifest.write(into, {f"{part}-{scale}.json": facts_json.encode(), f"{part}-{scale}.csv.gz": content})


def save_outcomes(outcomes: Mapping[str, Sequence[ClaimOutcome]], data: Mapping[str, str], into: Path) -> None:
    """Keep the outcomes of some parts, whose data are named, in the file that ``claim_table.rows`` reads.

    Those of other parts stay as they are there.
    """
    path = into / RECORDED.name
    others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    # Part by part in the order of the report, whatever is recorded in one go.
    kept = {name: [row for row in others if claim(row["id"]).part == name] for name in PARTS}
    for part, of_part in outcomes.items():
        new = [{**asdict(outcome), "data": data[part]} for outcome in of_part]
        kept[part] = [{"recorded": row.pop("scale"), **row} for row in new]
    rows = [row for rows_of_part in kept.values() for row in rows_of_part]
    manifest.write(into, {path.name: (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode()})


def load(part: str, scale: str, of: Path | None = None) -> Rows | None:
    """What was kept of a part at a scale, with the code or in a folder, or None.

    Raises:
        InputError: If the files are damaged, or not those that the folder's ``manifest`` lists.
    """
    of = RESULTS if of is None else of
    path = of / f"{part}-{scale}.csv.gz"
    if not manifest.is_there(path):
        return None
    for each in (path, of / f"{part}-{scale}.json"):
        manifest.check(each)
    try:
        facts = json.loads((of / f"{part}-{scale}.json").read_text(encoding="utf-8"))
        rows = pd.read_csv(io.BytesIO(gzip.decompress(path.read_bytes())))
        recorded, here = facts["means"], means(rows)
        apart = [name for name in {*recorded, *here} if not math.isclose(recorded.get(name, 0), here.get(name, 0))]
        if apart:
            raise ValueError(f"the means of {', '.join(sorted(apart))} are not those of the rows")
        rows = rows.assign(**{name: rows[name].map(json.loads) for name in facts["json"]})
        runs = facts["finished"], facts["of"]
        return Rows(scale, rows, facts["provenance"] or [{}], facts["date"], facts["code"], runs)
    except (OSError, EOFError, ValueError, KeyError) as error:
        name = f"{part}-{scale}"
        raise InputError(f"recorded rows must be whole files {name}.csv.gz and .json, got {path} ({error})") from None


def is_there(part: str, scale: str = "") -> bool:
    """Whether rows of a part are kept with the code, at this scale or, without one, at any."""
    return any((RESULTS / f"{part}-{each}.csv.gz").exists() for each in ([scale] if scale else SCALE_NAMES))


def largest(part: str, of: Path | None = None) -> Rows | None:
    """As ``load``, at the largest scale that is complete; where none is, at the largest scale."""
    by_scale = [rows for scale in reversed(SCALE_NAMES) if (rows := load(part, scale, of)) is not None]
    return next((rows for rows in by_scale if rows.complete), by_scale[0] if by_scale else None)
