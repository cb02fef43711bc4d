"""The memory table: what each role should need, to a few pages, and planted extra vectors that it must show."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.methods.memory import ROLES, memory_rows, status_bytes
from decomfl_lab.storage.tables import text_beside
from tests.decomfl_lab.language.tiny import transformers

D = 1_000_000

pytestmark = pytest.mark.skipif(status_bytes("VmPeak") is None, reason="this system does not tell peaks")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.DataFrame(memory_rows([D]))


def _models(table: pd.DataFrame, role: str) -> float:
    return float(table.models[table.role == role].item())


@pytest.mark.thorough
def test_every_role_needs_what_its_vectors_take(table: pd.DataFrame) -> None:
    assert list(table.columns) == ["role", "d", "peak_bytes", "models", "phi_share", "expected"]
    assert list(table.role) == list(ROLES)
    assert (abs(table.d - D) < 0.01 * D).all()
    assert np.allclose(table.phi_share, 1 / 8)
    assert np.allclose(table.models, table.peak_bytes / (4 * table.d))
    above = table.models - table.expected
    assert ((above >= 0) & (above < 0.05)).all(), table


PLANTED = text_beside(__name__, "memory_faults.txt")
MORE = {
    "client-lean-k1": 1.0,
    "client": 1.0,
    "client-lean-grid": 1.0,
    "client-k1": 2.0,  # x and three live before the point is formed; nothing is sampled, so this moment is seen
    "server": 1.0,
    "server-model": 0.0,
}


@pytest.mark.thorough
def test_a_vector_too_many_is_seen(table: pd.DataFrame, tmp_path: Path) -> None:
    program = tmp_path / "planted.py"
    program.write_text(PLANTED)
    rows = memory_rows([D], tuple(MORE), program=[str(program)])
    more = {row["role"]: row["models"] - _models(table, row["role"]) for row in rows}
    assert more == pytest.approx(MORE, abs=0.02)


def test_the_rows_of_one_size_and_two_roles() -> None:
    rows = list(memory_rows([100_000], ["server", "client-lean-k1"]))
    assert [(row["role"], round(row["d"], -4)) for row in rows] == [("server", 100_000), ("client-lean-k1", 100_000)]
    assert [row["models"] for row in rows] == pytest.approx([0, 1.125], abs=0.12)


def test_unknown_roles_and_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="role must be one of server, server-model"):
        list(memory_rows([D], ["butler"]))
    with pytest.raises(InputError, match="d must be an integer of at least 1, got 0"):
        list(memory_rows([0]))
    with pytest.raises(InputError, match="d must fit into the"):
        list(memory_rows([10**14]))


def test_a_measurement_that_fails_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "failing.py"
    program.write_text("raise SystemExit(3)")
    with pytest.raises(InputError, match=r"measuring client-k1:1000000 must end well, but ended with 3"):
        list(memory_rows([D], ["client-k1"], program=[str(program)]))


# --- a round that fine-tunes a causal model of 15 million parameters -------------------------------------------------

SMALL_VOCABULARY, LARGE_VOCABULARY = 15_000_001, 15_000_002
LEAN, DENSE, SIXTEEN_BITS, WHOLE_TABLES = "client-lean-k1", "client-k1", "client-lean", "client-lean-grid"
"""Roles; the program replaces the last two."""

PROGRAM = text_beside(__name__, "language_memory.txt")


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


@pytest.mark.thorough
@pytest.mark.parametrize("d", [SMALL_VOCABULARY, LARGE_VOCABULARY])
def test_a_lean_round_needs_little_more_than_the_model(d: int, peaks: dict[tuple[str, int], float]) -> None:
    assert 1 < peaks[LEAN, d] < 1.15
    assert 1 < 2 * peaks[SIXTEEN_BITS, d] < 1.2  # in models of its own two bytes an element


@pytest.mark.thorough
def test_a_whole_table_or_a_whole_point_would_be_seen(peaks: dict[tuple[str, int], float]) -> None:
    assert peaks[WHOLE_TABLES, LARGE_VOCABULARY] > 1.7
    assert peaks[DENSE, LARGE_VOCABULARY] > 2
