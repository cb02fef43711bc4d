"""The Triton backend: its checks in the interpreter and, where there is one, on the GPU; the code it compiles to."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).with_name("triton_checks.py")
GPU = "decomfl_lab.noise.triton_gpu"

pytest.importorskip("triton", reason="Triton is not installed (there are no builds for this system)")

compiled = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does not compile")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))


@pytest.mark.parametrize("where", ["interpreter", "GPU"])
def test_backend_has_the_bits_of_the_reference(where: str) -> None:
    if where == "GPU" and not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["TRITON_INTERPRET"] = "1" if where == "interpreter" else "0"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 80


def test_import_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delitem(sys.modules, GPU, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ImportError, match="torch sees no CUDA device"):
        importlib.import_module(GPU)
    with monkeypatch.context() as older:
        older.setattr(importlib.metadata, "version", lambda name: "3.5.1")
        with pytest.raises(ImportError, match=r"Triton 3.5.1 rounds otherwise; 3.6 or newer is needed"):
            importlib.import_module(GPU)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="Triton is not installed"):
        importlib.import_module(GPU)


# The compiled code, without a GPU ----------------------------------------------------------------------------

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

FUSED = re.compile(r"\bfma\.[a-z.]*b?f(?:16|32|64)")
CONTRACTIBLE = re.compile(r"\b(?:add|sub|mul)\.f(?:32|64)")
"""PTX's sums and products that do not say .rn may be contracted by its assembler."""
INEXACT = re.compile(r"\b(?:div|sqrt|rcp|rsqrt|sin|cos|ex2|lg2)\.(?:approx|full)[a-z.0-9]*|\.ftz\b")


@compiled
@pytest.mark.parametrize(
    "dtypes",
    [
        None,
        *((dtype,) for dtype in FLOATS),
        (torch.bfloat16, torch.float32),
        (torch.float32,) * 3,
        (torch.float64,) * 8,
    ],
)
def test_compiled_code_rounds_every_operation_once(dtypes: tuple[torch.dtype, ...] | None) -> None:
    from decomfl_lab.noise.triton_kernels import ptx

    code = ptx(dtypes)
    assert "sqrt.rn.f32" in code
    for pattern in (FUSED, CONTRACTIBLE, INEXACT):
        assert pattern.findall(code) == []
    for kind in {"f32"} if dtypes is None else {"f64"} if torch.float64 in dtypes else {"f32"}:
        wanted = ["mul", "add", "sqrt"] if dtypes is None else ["mul", "add", "sub", "div", "sqrt"]
        assert all(f"{name}.rn.{kind}" in code for name in wanted)


@compiled
def test_compiled_code_is_the_same_for_tensors_at_odd_places() -> None:
    from decomfl_lab.noise.triton_kernels import ptx

    aligned, odd = (
        re.findall(r"^\t(?!\.)[^;/]*;", ptx((torch.bfloat16, torch.float32), aligned=aligned), re.MULTILINE)
        for aligned in (True, False)
    )
    assert aligned == odd
    assert len(odd) > 500


@compiled
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
def test_the_check_of_the_compiled_code_can_fail(dtype: torch.dtype | None) -> None:
    from decomfl_lab.noise.triton_kernels import ptx

    code = ptx(dtype, fused=True)
    assert FUSED.search(code)
    assert CONTRACTIBLE.search(code)
