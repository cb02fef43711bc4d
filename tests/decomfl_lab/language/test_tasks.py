"""The six tasks: prompts to the letter, files of either layout, and what is said of bad ones."""

import json
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.finetuning import encode
from decomfl_lab.language.tasks import TASKS, load_task
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.toy import FIRST, PAD, ToyTokens

ROWS = rows_of(__file__)
EXAMPLES = {name: (own["example"], own["prompt"], own["words"]) for name, own in ROWS["tasks"].items()}


def _jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", TASKS)
def test_prompts_and_verbalizers_are_the_papers_to_the_letter(name: str) -> None:
    example, prompt, words = EXAMPLES[name]
    task = TASKS[name]
    assert task.prompt(example) == prompt
    assert list(task.verbalizers) == words
    assert len(task.classes) == len(words)
    assert set(task.columns) == set(example)
    assert task.max_length + 1 == (32 if name == "sst2" else 2048)  # the authors count the answer's token


@pytest.mark.parametrize(("name", "given", "number"), ROWS["labels"])
def test_labels_are_numbers_names_or_truth_values(name: str, given: Any, number: int) -> None:
    assert TASKS[name].label({"label": given}) == number


@pytest.mark.parametrize("name", TASKS)
def test_the_hubs_layout_is_read(name: str, tmp_path: Path) -> None:
    example, prompt, _ = EXAMPLES[name]
    _jsonl(tmp_path / "train-00000-of-00002.jsonl", example)
    _jsonl(tmp_path / "train-00001-of-00002.jsonl", {**example, "label": 1, "idx": 3})
    _jsonl(tmp_path / "validation.jsonl", example)
    data = load_task(name, folder=tmp_path)
    assert data.train == [(prompt, 0), (prompt, 1)]
    assert data.test == [(prompt, 0)]
    assert f"{TASKS[name].title}: 2 train / 1 test examples, from {tmp_path.name}" in data.source


def test_parquet_is_read_where_pandas_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"sentence": ["a fine film ", "odd"], "label": [1, 0], "idx": [0, 1]})

    def read(content: BytesIO) -> pd.DataFrame:
        if content.read() == b"damaged":
            raise ValueError("no footer\nat all")
        return table

    for part in ("train", "validation"):
        (tmp_path / f"{part}-00000-of-00001.parquet").write_bytes(b"whole")
    monkeypatch.setattr(pd, "read_parquet", read)
    assert load_task("sst2", folder=tmp_path).test == [("a fine film It was", 1), ("odd It was", 0)]
    del table["label"]
    with pytest.raises(InputError, match=r"train-00000-of-00001\.parquet, row 1: column 'label' must be there"):
        load_task("sst2", folder=tmp_path)
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"parquet must be a whole parquet file \(no footer at all\)$"):
        load_task("sst2", folder=tmp_path)

    def missing(_: BytesIO) -> pd.DataFrame:
        raise ImportError

    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(InputError, match="parquet needs a reader of parquet: pip install pyarrow"):
        load_task("sst2", folder=tmp_path)


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    example = EXAMPLES["rte"][0]
    for part in ("train", "val"):
        _jsonl(tmp_path / f"{part}.jsonl", example)
    before = load_task("rte", folder=tmp_path).digest
    assert before == load_task("rte", folder=tmp_path).digest
    _jsonl(tmp_path / "val.jsonl", {**example, "label": 1})
    assert before != load_task("rte", folder=tmp_path).digest


@refuses(*ROWS["refused"])
def test_a_bad_row_is_named_by_file_row_and_column(line: str, tmp_path: Path) -> None:
    good = EXAMPLES["rte"][0]
    _jsonl(tmp_path / "train.jsonl", good)
    _jsonl(tmp_path / "val.jsonl", good)
    with (tmp_path / "val.jsonl").open("a") as file:
        file.write(line + "\n")
    load_task("rte", folder=tmp_path)


TRAIN = {"train.tsv": b"sentence\tlabel\nfine\t1\n"}


@refuses(
    ("sst2", {}, r"folder of task sst2 must have a file train as \.jsonl, \.tsv, \.parquet, got"),
    ("sst2", TRAIN, "must have a file validation or val or dev"),
    ("sst2", {**TRAIN, "dev.tsv": b"sentence\tlabel\nfine\n"}, "dev.tsv, row 2: must have 2 columns, got 1"),
    ("sst2", {**TRAIN, "dev.tsv": b"sentence\tlabel\n\xff\t1\n"}, "dev.tsv must be UTF-8"),
    ("sst2", {**TRAIN, "dev.tsv": b""}, "test examples of task sst2 must be at least one"),
    ("mnli", {}, "task must be one of sst2, cb, wsc, wic, rte, boolq, got 'mnli'"),
)
def test_bad_files_are_one_line(task: str, files: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    load_task(task, folder=tmp_path)


def test_the_folder_of_the_environment_must_have_the_very_files(
    tmp_path: Path, data_in: Callable[[Path], None]
) -> None:
    with pytest.raises(InputError, match="data of task cb must be available here: set DECOMFL_DATA"):
        load_task("cb")
    data_in(tmp_path)
    _jsonl(tmp_path / "cb" / "train.jsonl", EXAMPLES["cb"][0])
    with pytest.raises(InputError, match=r"train\.jsonl must have sha256 32017480d3a1"):
        load_task("cb")


# --- prompts as token numbers, and libraries that are not there -------------------------------------------------------

TOKENS = ToyTokens()


def _words(text: str) -> list[int]:
    return TOKENS.encode(text)[1:]


def test_prompts_end_in_the_last_column() -> None:
    ids = encode(["one two three", "four"], TOKENS, max_length=9)
    expected = [[FIRST, *_words("one two three")], [PAD, PAD, FIRST, *_words("four")]]
    assert torch.equal(ids, torch.tensor(expected))
    assert ids.dtype == torch.int64


def test_a_prompt_that_may_not_be_cut_is_named() -> None:
    assert encode(["one two", "one two three"], TOKENS, max_length=4, truncate=False).shape == (2, 4)
    with pytest.raises(InputError, match="prompt 1 must fit the model's context of 3 tokens .*, got 4 tokens"):
        encode(["one two", "one two three"], TOKENS, max_length=3, truncate=False)


def test_a_missing_library_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"^model m needs the extra llm: pip install "):
        llm_library("no_such_library", "model m")


@pytest.mark.parametrize(("body", "found"), [("raise RuntimeError('built for another torch')", "None"), ("", "spec")])
def test_a_module_that_cannot_be_loaded_is_not_found_by_others(tmp_path: Path, body: str, found: str) -> None:
    """In a process of its own, with a module that raises, and one that does not."""
    (tmp_path / "beside.py").write_text(body)
    code = (
        "import importlib.util; from decomfl_lab.language.extra import pass_over; pass_over('beside'); "
        "print('None' if importlib.util.find_spec('beside') is None else 'spec')"
    )
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == found
