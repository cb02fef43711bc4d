"""The extra's libraries: what is missing is said, and what is broken beside them is passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.language.extra import llm_library


def test_a_missing_library_is_one_line_that_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"^model m needs the extra llm: pip install 'decomfl-lab\[llm\]'"):
        llm_library("no_such_library", "model m")


@pytest.mark.thorough
def test_users_own_import_of_a_model_works() -> None:
    """In a process of its own, in which nothing of the lab's is imported and nothing is passed over."""
    pytest.importorskip("transformers")
    code = "from transformers import GPT2LMHeadModel"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


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
