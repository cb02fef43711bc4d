"""The memory table: what each role should need, to a few pages, and planted extra vectors that it must show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.bench import status_bytes
from decomfl_lab.cli import main
from decomfl_lab.errors import InputError
from decomfl_lab.memory import ROLES, MemoryRow, memory_rows, memory_table

D = 1_000_000

pytestmark = pytest.mark.skipif(status_bytes("VmPeak") is None, reason="this system does not tell peaks")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return memory_table([D])


def _models(table: pd.DataFrame, role: str) -> float:
    return float(table.models[table.role == role].item())


def test_every_role_needs_what_its_vectors_take(table: pd.DataFrame) -> None:
    assert list(table.columns) == ["role", "d", "peak_bytes", "models", "phi_share", "expected"]
    assert list(table.role) == list(ROLES)
    assert (abs(table.d - D) < 0.01 * D).all()
    assert np.allclose(table.phi_share, 1 / 8)
    assert np.allclose(table.models, table.peak_bytes / (4 * table.d))
    above = table.models - table.expected
    assert ((above >= 0) & (above < 0.05)).all(), table


def test_servers_need_nothing_and_lean_clients_the_model_and_a_layer(table: pd.DataFrame) -> None:
    assert _models(table, "server") < 0.02
    for role in ("client-lean-k1", "client-lean-grid"):
        assert 1 + 1 / 8 <= _models(table, role) < 1 + 1 / 8 + 0.05
    assert _models(table, "client-k1") > 2  # so that the difference shows
    assert _models(table, "fedzo") > 3


HOARDERS = """
import sys
import numpy as np
import torch
from decomfl_lab import memory
from decomfl_lab.client import Client
from decomfl_lab.server import Server

class Hoarder(Client):
    def handle(self, plan):
        {statement}
        return super().handle(plan)

class HoardingServer(Server):
    def plan_round(self, *args):
        self.kept = np.ones(memory_d[0], dtype=np.float32)
        return super().plan_round(*args)

memory_d = [0]
build = memory._model
def model(d):
    module = build(d)
    memory_d[0] = sum(p.numel() for p in module.parameters())
    return module

memory._model = model
memory.Client = Hoarder
memory.Server = HoardingServer if {server} else Server
memory.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "statement",
    ["self.kept = self.replica.x.clone()", "self.kept = self.replica.x.numpy().copy()"],
    ids=["of torch", "of numpy"],
)
def test_a_client_that_keeps_one_vector_too_many_is_seen(statement: str, table: pd.DataFrame, tmp_path: Path) -> None:
    program = tmp_path / "hoarder.py"
    program.write_text(HOARDERS.format(statement=statement, server=False))
    roles = ["client-lean-k1", "client", "client-lean-grid"]
    rows = memory_rows([D], roles, program=[str(program)])
    more = [row.peak_models - _models(table, row.role) for row in rows if row.peak_models is not None]
    assert more == pytest.approx([1.0, 1.0, 1.0], abs=0.01)


def test_a_vector_that_lives_for_a_moment_only_is_seen(table: pd.DataFrame, tmp_path: Path) -> None:
    """Nothing is sampled: it dies before anyone could look."""
    program = tmp_path / "hoarder.py"
    moment = "self.replica.x.repeat(3)"
    program.write_text(HOARDERS.format(statement=moment, server=False))
    (row,) = memory_rows([D], ["client-k1"], program=[str(program)])
    assert row.peak_models == pytest.approx(4.0, abs=0.02)  # x and three, before the point is formed


def test_a_server_that_forms_a_vector_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "hoarder.py"
    program.write_text(HOARDERS.format(statement="pass", server=True))
    (row,) = memory_rows([D], ["server"], program=[str(program)])
    assert row.peak_models == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
def test_resident_memory_agrees_for_large_models() -> None:
    for row in memory_rows([10_000_000], resident=True):
        assert row.resident_models == pytest.approx(row.peak_models, abs=0.03), row
        assert row.resident_models == pytest.approx(row.expected, abs=0.03), row


def test_resident_memory_is_not_told_for_small_models() -> None:
    (row,) = memory_rows([100_000], ["client-k1"], resident=True)
    assert row.resident_models is None
    assert row.peak_models == pytest.approx(2.0, abs=0.15)


def test_the_command_prints_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "memory", "--d", "1e5,2e5", "--role", "server,client-lean-k1"]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["role"], round(row["d"], -4)) for row in rows] == [
        ("server", 100_000),
        ("client-lean-k1", 100_000),
        ("server", 200_000),
        ("client-lean-k1", 200_000),
    ]
    assert [row["peak_models"] for row in rows] == pytest.approx([0, 1.125, 0, 1.125], abs=0.12)
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "lean DeComFL client, K = 1: x and a layer" in shown
    assert "1.125" in shown


def test_unknown_roles_and_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory", "--role", "butler"]) == 2
    assert "role must be one of server, server-model" in capsys.readouterr().err
    assert main(["bench", "memory", "--d", "0"]) == 2
    assert "d must be an integer of at least 1, got 0" in capsys.readouterr().err


def test_a_measurement_that_fails_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "hoarder.py"
    program.write_text(HOARDERS.format(statement="raise RuntimeError('out of memory')", server=False))
    with pytest.raises(InputError, match=r"measuring client-k1:1000000:0 must end well, but ended with 1"):
        list(memory_rows([D], ["client-k1"], program=[str(program)]))
    assert "out of memory" in capfd.readouterr().err


def test_where_the_system_does_not_tell_there_is_no_peak() -> None:
    row = MemoryRow("server", "", 100, 10, 0.0, None, None)
    assert row.peak_models is None
