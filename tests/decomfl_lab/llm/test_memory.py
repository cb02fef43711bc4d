"""Peak memory of a round that fine-tunes a causal model of 15 million parameters, by ``decomfl_lab.memory``."""

from __future__ import annotations

from pathlib import Path

import pytest

from decomfl_lab.bench import status_bytes
from decomfl_lab.memory import memory_rows
from tests.decomfl_lab.llm.tiny import transformers

PROGRAM = """
import sys
sys.path[:0] = [{root!r}]
import torch
from torch.nn.functional import cross_entropy
from decomfl_lab import memory, perturbed
from decomfl_lab.objective import EpochBatches, ModuleObjective
from decomfl_lab.replica import Layout
from tests.decomfl_lab.llm.tiny import answers

SHAPES = {{100_000: (500, 32, 2), 15_000_001: (4096, 384, 8), 15_000_002: (50272, 224, 6)}}

def model(d):
    vocabulary, width, depth = SHAPES[d]
    return answers("opt", vocabulary=vocabulary, width=width, depth=depth)

def objective(module):
    ids = torch.arange(3, 11)[None]
    return ModuleObjective(module, Layout.of(module), cross_entropy, ids, torch.tensor([0]), EpochBatches(1, 1, (0,)))

memory._model, memory._objective = model, objective
if {planted}:
    perturbed._Virtual._looked_up = lambda *_: None
memory.main(sys.argv[1:])
"""
SMALL_VOCABULARY, LARGE_VOCABULARY = 15_000_001, 15_000_002

pytestmark = pytest.mark.skipif(status_bytes("VmPeak") is None, reason="this system does not tell peaks")


def _peak(role: str, d: int, folder: Path, *, planted: bool = False) -> float:
    transformers()
    program = folder / "program.py"
    program.write_text(PROGRAM.format(root=str(Path(__file__).parents[3]), planted=planted))
    (row,) = memory_rows([d], [role], program=[str(program)])
    assert 10_000_000 < row.d < 20_000_000
    assert row.peak_models is not None
    return row.peak_models


@pytest.mark.slow
@pytest.mark.parametrize("d", [SMALL_VOCABULARY, LARGE_VOCABULARY])
def test_a_lean_round_needs_little_more_than_the_model(d: int, tmp_path: Path) -> None:
    assert 1 < _peak("client-lean-k1", d, tmp_path) < 1.15


@pytest.mark.slow
def test_a_whole_table_or_a_whole_point_would_be_seen(tmp_path: Path) -> None:
    assert _peak("client-lean-k1", LARGE_VOCABULARY, tmp_path, planted=True) > 1.7
    assert _peak("client-k1", LARGE_VOCABULARY, tmp_path) > 2
