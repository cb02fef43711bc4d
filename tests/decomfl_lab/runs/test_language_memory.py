"""Peak memory of a round that fine-tunes a causal model of 15 million parameters, by ``decomfl_lab.runs.memory``."""

from pathlib import Path

import pytest

from decomfl_lab.runs.memory import memory_rows, status_bytes
from tests.decomfl_lab.language.tiny import transformers

SMALL_VOCABULARY, LARGE_VOCABULARY = 15_000_001, 15_000_002
LEAN, DENSE, SIXTEEN_BITS, WHOLE_TABLES = "client-lean-k1", "client-k1", "client-lean", "client-lean-grid"
"""Roles; the program replaces the last two."""

PROGRAM = """
import sys
from unittest.mock import patch
sys.path[:0] = [{root!r}]
import torch
from torch.nn.functional import cross_entropy
from decomfl_lab.runs import memory
from decomfl_lab.objectives import perturbed
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.layout import Layout
from decomfl_lab.replicas.rules import LowPrecision, Sgd
from tests.decomfl_lab.language.tiny import answers

SHAPES = {{memory._WARM: (500, 32, 2), 15_000_001: (4096, 384, 8), 15_000_002: (50272, 224, 6)}}

def model(d):
    vocabulary, width, depth = SHAPES[d]
    return answers("opt", vocabulary=vocabulary, width=width, depth=depth)

def objective(module):
    ids = torch.arange(3, 11)[None]
    return ModuleObjective(module, Layout.of(module), cross_entropy, ids, torch.tensor([0]), EpochBatches(1, 1, (0,)))

def sixteen_bits(module):
    return memory._client(module, rule=LowPrecision(Sgd()), K=1, lean=True)

def whole_tables(module):
    round_ = memory._client(module, rule=Sgd(), K=1, lean=True)
    def planted():
        with patch.object(perturbed._Virtual, "_looked_up", lambda *_: None):
            round_()
    return planted

memory._model, memory._objective = model, objective
memory.ROLES["client-lean"] = memory.Role("", sixteen_bits, 1)
memory.ROLES["client-lean-grid"] = memory.Role("", whole_tables, 1)
memory.main(sys.argv[1:])
"""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(status_bytes("VmPeak") is None, reason="this system does not tell peaks"),
]


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], float]:
    """In models of 4d bytes, by role and size."""
    transformers()
    program = tmp_path_factory.mktemp("memory") / "program.py"
    program.write_text(PROGRAM.format(root=str(Path(__file__).parents[3])))
    sizes, roles = (SMALL_VOCABULARY, LARGE_VOCABULARY), (LEAN, DENSE, SIXTEEN_BITS, WHOLE_TABLES)
    rows = list(memory_rows(sizes, roles, program=[str(program)]))
    assert all(14_000_000 < row.d < 16_000_000 for row in rows)
    jobs = [(role, size) for size in sizes for role in roles]
    return {job: row.peak_models for job, row in zip(jobs, rows, strict=True) if row.peak_models is not None}


@pytest.mark.parametrize("d", [SMALL_VOCABULARY, LARGE_VOCABULARY])
def test_a_lean_round_needs_little_more_than_the_model(d: int, peaks: dict[tuple[str, int], float]) -> None:
    assert 1 < peaks[LEAN, d] < 1.15
    assert 1 < 2 * peaks[SIXTEEN_BITS, d] < 1.2  # in models of its own two bytes an element


def test_a_whole_table_or_a_whole_point_would_be_seen(peaks: dict[tuple[str, int], float]) -> None:
    assert peaks[WHOLE_TABLES, LARGE_VOCABULARY] > 1.7
    assert peaks[DENSE, LARGE_VOCABULARY] > 2
