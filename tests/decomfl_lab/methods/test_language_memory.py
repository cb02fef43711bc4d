"""Peak memory of a round that fine-tunes a causal model of 15 million parameters, by ``decomfl_lab.methods.memory``."""

from pathlib import Path

import pytest

from decomfl_lab.methods.memory import memory_rows, status_bytes
from decomfl_lab.tables import text_beside
from tests.decomfl_lab.language.tiny import transformers

SMALL_VOCABULARY, LARGE_VOCABULARY = 15_000_001, 15_000_002
LEAN, DENSE, SIXTEEN_BITS, WHOLE_TABLES = "client-lean-k1", "client-k1", "client-lean", "client-lean-grid"
"""Roles; the program replaces the last two."""

PROGRAM = text_beside(__name__, "language_memory.txt")

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
    assert all(14_000_000 < row["d"] < 16_000_000 for row in rows)
    jobs = [(role, size) for size in sizes for role in roles]
    return {job: row["models"] for job, row in zip(jobs, rows, strict=True) if row["models"] is not None}


@pytest.mark.parametrize("d", [SMALL_VOCABULARY, LARGE_VOCABULARY])
def test_a_lean_round_needs_little_more_than_the_model(d: int, peaks: dict[tuple[str, int], float]) -> None:
    assert 1 < peaks[LEAN, d] < 1.15
    assert 1 < 2 * peaks[SIXTEEN_BITS, d] < 1.2  # in models of its own two bytes an element


def test_a_whole_table_or_a_whole_point_would_be_seen(peaks: dict[tuple[str, int], float]) -> None:
    assert peaks[WHOLE_TABLES, LARGE_VOCABULARY] > 1.7
    assert peaks[DENSE, LARGE_VOCABULARY] > 2
