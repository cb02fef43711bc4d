"""``examples/pretrain.py`` runs as it stands, and its folder is a model to fine-tune."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decomfl_lab.language.causal import load_causal
from tests.decomfl_lab.language.tiny import transformers

EXAMPLE = Path(__file__).parents[2] / "examples" / "pretrain.py"


@pytest.mark.thorough
def test_the_folder_is_a_model_to_fine_tune(tmp_path: Path) -> None:
    transformers()
    pytest.importorskip("tokenizers", reason="the extra llm is not installed")
    words = [sys.executable, str(EXAMPLE), "opt-0.3m", str(tmp_path / "model"), "100"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=one_thread, capture_output=True, text=True, check=True)
    assert "step 100 of 100: loss" in done.stdout
    assert "opt-0.3m: d = 490,512, 51,200 tokens" in done.stdout
    assert load_causal(str(tmp_path / "model")).tokenizer.pad == 1
