"""The paper's six tasks: examples as prompts whose next token, among a few words, is the answer.

    class(prompt) = argmax_c logit(verbalizer_c | prompt)

Where the files are: a folder of the user's in the hub's layout (parts ``train`` and ``validation``, ``val`` or ``dev``
as jsonl, tsv or parquet, with the hub's columns), or ``$DECOMFL_DATA/<task>`` with the files that it names,
whose sha256 is checked. Of the latter some train parts are incomplete, and the source line says so. As in the paper,
the validation part is the test set.

``tasks.toml`` has templates, verbalizers, lengths and files.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec

from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.storage.files import read_file
from decomfl_lab.storage.tables import table_beside

_CLEANED: dict[str, Callable[[str], str]] = {"sentence": str.strip, "span2_text": str.lower}
"""What the templates do to a column."""


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task under ``$DECOMFL_DATA/<task>``."""

    train: Mapping[str, str]  # the sha256 of each file of training examples, by its name
    test: Mapping[str, str]  # the sha256 of each file of the labelled validation part, by its name
    # How many of the first test examples are trained on instead; others with the same first column (a passage that was
    # seen) are then left out.
    borrowed: int = 0
    note: str = ""  # words that say what is incomplete


@dataclass(frozen=True)
class Task:
    """A classification by the next token."""

    name: str  # key of ``TASKS``
    title: str  # the name that people call it by
    classes: tuple[str, ...]  # names of the classes; a class's number is its place
    verbalizers: tuple[str, ...]  # the word that stands for each class; its last token is the one that counts
    template: str  # the text of a prompt, with columns in braces. The answer would follow directly
    files: TaskFiles
    # The most tokens of a prompt, of which the last are kept: the authors' 32 or 2048 less the answer's.
    max_length: int = 2047

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that an example needs: the template's, and the label."""
        return (*dict.fromkeys(name for _, name, _, _ in Formatter().parse(self.template) if name), "label")

    def prompt(self, example: Mapping[str, Any]) -> str:
        """The template filled in; InputError that names a column that is missing or no text."""
        filled = {}
        for column in self.columns[:-1]:
            require(column in example, f"column {column!r}", "be there", f"columns {', '.join(example)}")
            require(isinstance(example[column], str), f"column {column!r}", "be text", example[column])
            filled[column] = _CLEANED.get(column, str)(example[column])
        return self.template.format_map(filled)

    @property
    def content_free(self) -> str:
        """The prompt that says nothing: "N/A" in every column."""
        return self.prompt(dict.fromkeys(self.columns, "N/A"))

    def label(self, example: Mapping[str, Any]) -> int:
        """The class, given as its number or by its name; InputError if it is neither."""
        require("label" in example, "column 'label'", "be there", f"columns {', '.join(example)}")
        labels = {str(c): c for c in range(len(self.classes))} | {name: c for c, name in enumerate(self.classes)}
        c = labels.get(str(example["label"]).lower())
        if c is None:
            raise InputError(f"column 'label' must be one of {', '.join(labels)}, got {example['label']!r}")
        return c


TASKS = msgspec.convert(
    {name: {"name": name, **own} for name, own in table_beside(__name__, "tasks.toml").items()}, dict[str, Task]
)


@dataclass(frozen=True)
class TaskData:
    """A task's examples as (prompt, class)."""

    train: list[tuple[str, int]]  # the examples to train on
    test: list[tuple[str, int]]  # the examples of the validation part
    source: str  # A line that says which data was really used, and what of it is missing
    digest: str  # hex digest of the files


def load_task(name: str, *, folder: str | Path | None = None) -> TaskData:
    """The examples of the task ``name``, of a folder in the hub's layout, or of ``$DECOMFL_DATA/<task>`` for None.

    InputError if the name is unknown, a file is missing, altered or damaged, or a row lacks a column.
    """
    task, note = TASKS[require_choice("task", name, TASKS)], ""
    if folder is not None:
        sha256, where = hashlib.sha256(), f"from {Path(folder).name}"

        def part(*stems: str) -> list[Row]:
            """The rows of the one file of a part, or of its numbered pieces, by the first name and kind there is."""
            found: list[Path] = []
            for stem, kind in product(stems, _KINDS):
                found = found or [*Path(folder).glob(f"{stem}{kind}"), *sorted(Path(folder).glob(f"{stem}-*{kind}"))]
            if not found:
                kinds = f"a file {' or '.join(stems)} as {', '.join(_KINDS)}"
                raise InputError(f"folder of task {name} must have {kinds}, got {folder}")
            rows: list[Row] = []
            for path in found:
                content = read_file("data file", path, plain=False)
                sha256.update(content)
                rows += _rows(path, content)
            return rows

        train, test = part("train"), part("validation", "val", "dev")
        digest = sha256.hexdigest()
    else:
        users = os.environ.get("DECOMFL_DATA")
        if not users:
            raise InputError(
                f"data of task {name} must be available here: set DECOMFL_DATA to a folder that has {name}/, or "
                "task_data to one with the hub's files"
            )
        from decomfl_lab.datasets.images import read_checked

        source, own, where = task.files, Path(users) / name, "from DECOMFL_DATA"
        train, test = (
            [row for file, expected in files.items() for row in _rows(own / file, read_checked(own, file, expected))]
            for files in (source.train, source.test)
        )
        borrowed, test = test[: source.borrowed], test[source.borrowed :]
        seen = {row[task.columns[0]] for _, row in borrowed}
        train = train + borrowed
        test = [(place, row) for place, row in test if row[task.columns[0]] not in seen]
        note = source.note
        digest = hashlib.sha256("".join([*source.train.values(), *source.test.values()]).encode()).hexdigest()
    for title, rows in (("training", train), ("test", test)):
        require(bool(rows), f"{title} examples of task {name}", "be at least one", 0)
    told = f"{task.title}: {len(train):,} train / {len(test):,} test examples, {where}{note and f'; {note}'}"
    return TaskData([_example(task, *row) for row in train], [_example(task, *row) for row in test], told, digest[:16])


def _example(task: Task, where: str, row: Mapping[str, Any]) -> tuple[str, int]:
    try:
        return task.prompt(row), task.label(row)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


# --- files ------------------------------------------------------------------------------------------------------------

Row = tuple[str, dict[str, Any]]
"""A row of a file: where it stands, for errors, and its columns."""
_KINDS = (".jsonl", ".tsv", ".parquet")


def _rows(path: Path, content: bytes) -> Iterator[Row]:
    """The rows of a file by its ending, one of ``_KINDS``; lines are counted from 1, and only newlines end one."""
    if path.suffix == ".parquet":
        import pandas as pd

        try:
            table = pd.read_parquet(io.BytesIO(content))
        except ImportError:
            raise InputError(f"data file {path} needs a reader of parquet: pip install pyarrow") from None
        except (OSError, ValueError) as error:
            told = " ".join(str(error).split())
            raise InputError(f"data file {path} must be a whole parquet file ({told})") from None
        for n, found in enumerate(table.to_dict("records"), 1):
            yield f"{path}, row {n}", {str(column): value for column, value in found.items()}
        return
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"data file {path} must be UTF-8 ({error})") from None
    columns: list[str] = []
    for n, line in enumerate(text.split("\n"), 1):
        where, row = f"{path}, row {n}", line.removesuffix("\r")
        if not row.strip():
            continue
        if path.suffix == ".jsonl":
            try:
                example = json.loads(row)
            except json.JSONDecodeError as error:
                raise InputError(f"{where}: must be JSON ({error})") from None
            require(isinstance(example, dict), f"{where}:", "be a JSON object", example)
            nested = example.get("target")  # SuperGLUE's own WSC files keep the spans there
            yield where, {**example, **(nested if isinstance(nested, dict) else {})}
        elif not columns:  # the first line of a table names them
            columns = row.split("\t")
        else:
            values = row.split("\t")
            require(len(values) == len(columns), f"{where}:", f"have {len(columns)} columns", len(values))
            yield where, dict(zip(columns, values, strict=True))
