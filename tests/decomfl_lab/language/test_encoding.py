"""Prompts as token numbers, cut and padded on the left; what is said of the extra's libraries that are not there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decomfl_lab.errors import InputError
from decomfl_lab.language.encoding import encode
from decomfl_lab.language.extra import llm_library
from tests.decomfl_lab.language.toy import FIRST, PAD, ToyTokens

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
    with pytest.raises(InputError, match=r"^model m needs the extra llm: pip install 'decomfl-lab\[llm\]'"):
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
