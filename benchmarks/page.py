"""``decomfl bench page``: the recorded benchmarks as a page of Markdown."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.mould import Tabulated
from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require
from decomfl_lab.options import REQUIRED, option
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.tables import text_beside
from paper_repro.workflow import manifest

QUIET: Final = 0.05
"""The largest share of the machine that others may have taken while a benchmark ran that is published."""
_HEAD: Final = text_beside(__name__, "page.md")
_KEYS: Final = ("command", "date", "machine", "load", "code", "python", "torch", "about", "tables")


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """The options of ``decomfl page``."""

    records: Path = option(REQUIRED, "The folder of records, JSON files.", argument=True)
    write: Path | None = option(None, "The folder in which benchmarks.md is written. [default: print it]")


@command
def page(options: PageOptions) -> None:
    """Make a page of recorded benchmarks.

    One with times from a machine that others kept busy is refused.

    A record is what a benchmark prints with --json:

        decomfl bench round --batch 32 --perturbations 2 --json > records/round.json
        decomfl bench page records --write docs
    """
    require(options.records.is_dir(), "records", "be a folder", str(options.records))
    records: dict[str, Mapping[str, Any]] = {}
    for path in sorted(options.records.glob("*.json")):
        manifest.check(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            missing = [key for key in _KEYS if key not in record]
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} must be a record of `decomfl bench ... --json` ({error})") from None
        if missing:
            without = ", ".join(missing)
            raise InputError(f"{path} must be a record of `decomfl bench ... --json`, got a file without {without}")
        records[path.name] = dict(record)
    text = benchmarks(records)
    if options.write is None:
        print(text, end="")
    else:
        write_atomically(options.write / "benchmarks.md", text)


def benchmarks(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The page of the records, by the names of their files.

    Raises:
        InputError: If others took more than ``QUIET`` of the machine of a record with times.
    """
    parts = [_HEAD]
    for name, record in records.items():
        quiet = record["load"] <= QUIET or not record.get("timed", True)
        require(quiet, f"the load of {name}", f"be at most {QUIET} to be published", record["load"])
        about = str(record["about"]).split("\n\n")
        parts.append(f"## {about[0].removesuffix('.')}\n\n```text\n{record['command']}\n```\n")
        for table in (Tabulated(**each) for each in record["tables"]):
            sides = ["---" if n < table.words else "---:" for n in range(len(table.columns))]
            lines = [f"| {' | '.join(cells)} |" for cells in (table.columns, sides, *table.cells())]
            parts.append("\n".join([f"**{table.title}**\n", *lines]) + "\n")
        parts.append(" ".join("\n\n".join(about).split()) + "\n")
        parts.append(
            f"*{record['date']}, {record['machine']}, others {100 * record['load']:.1f} % of it; code "
            f"{record['code']}, Python {record['python']}, torch {record['torch']}.*\n"
        )
    return "\n".join(parts)
