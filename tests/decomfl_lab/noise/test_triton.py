"""The Triton backend: its checks in the interpreter and, where there is one, on the GPU; the code it compiles to."""

import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.cases import sampled

ROOT = Path(__file__).parents[3]
CHECKS = Path(__file__).with_name("triton_checks.py")
GPU = "decomfl_lab.noise.triton_gpu"

pytest.importorskip("triton", reason="Triton is not installed (there are no builds for this system)")

compiled = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does not compile")


def checked(*words: str, **environment: str) -> tuple[int, int]:
    """How many of ``triton_checks`` pass and how many fail, in a process of their own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | environment
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words, str(CHECKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=own)
    counts = [re.findall(rf"(\d+) {word}", done.stdout.splitlines()[-1]) for word in ("passed", "failed")]
    assert any(counts), done.stdout + done.stderr
    passed, failed = (int(found[0]) if found else 0 for found in counts)
    return passed, failed


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["interpreter", "GPU"])
def test_backend_has_the_bits_of_the_reference(where: str) -> None:
    if where == "GPU" and not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    passed, failed = checked(TRITON_INTERPRET="1" if where == "interpreter" else "0")
    assert failed == 0
    assert passed > 80


def test_import_says_what_is_missing(without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delitem(sys.modules, GPU, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ImportError, match="torch sees no CUDA device"):
        importlib.import_module(GPU)
    with monkeypatch.context() as older:
        older.setattr(importlib.metadata, "version", lambda name: "3.5.1")
        with pytest.raises(ImportError, match=r"Triton 3.5.1 rounds otherwise; 3.6 or newer is needed"):
            importlib.import_module(GPU)
    without("triton")
    with pytest.raises(ImportError, match="Triton is not installed"):
        importlib.import_module(GPU)


# The compiled code, without a GPU ----------------------------------------------------------------------------

KERNELS = [
    *(("run_program", (dtype,)) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    ("run_program", (torch.bfloat16, torch.float32)),
    ("run_program", (torch.float32,) * 3),
    ("run_program", (torch.float64,) * 8),
    ("square_sums", ()),
    ("tile_products", (torch.float32,)),
    ("tile_products", (torch.float64,)),
    ("add_in_order", ()),
    ("form_points", (torch.float32, torch.float32)),
    ("form_points", (torch.float64, torch.float64)),
    ("form_points", (torch.float32, torch.bfloat16)),
    ("form_points", (torch.float32, torch.float16)),
]
"""The kernels, by the types of the tensors that may have several."""
WITH_PRODUCTS = [row for row in KERNELS if row[0] != "add_in_order"]

FUSED = re.compile(r"\bfma\.[a-z.]*b?f(?:16|32|64)")
CONTRACTIBLE = re.compile(r"\b(?:add|sub|mul)\.f(?:32|64)")
"""PTX's sums and products that do not say .rn may be contracted by its assembler."""
INEXACT = re.compile(r"\b(?:div|sqrt|rcp|rsqrt|sin|cos|ex2|lg2)\.(?:approx|full)[a-z.0-9]*|\.ftz\b")


@compiled
@pytest.mark.parametrize(("kernel", "dtypes"), sampled(KERNELS, 4))
def test_compiled_code_rounds_every_operation_once(kernel: str, dtypes: tuple[torch.dtype, ...]) -> None:
    from tests.decomfl_lab.noise.assembly import assembly

    code = assembly(kernel, dtypes)
    for pattern in (FUSED, CONTRACTIBLE, INEXACT):
        assert pattern.findall(code) == []
    last = "f32" if kernel in ("run_program", "form_points") and torch.float64 not in dtypes else "f64"
    wanted = {"run_program": ["mul", "add", "sub", "div", "sqrt"], "add_in_order": ["add"]}.get(kernel, ["mul", "add"])
    assert all(f"{name}.rn.{last}" in code for name in wanted)
    assert ("sqrt.rn.f32" in code) == (kernel != "add_in_order")  # all others make normals


# Alignment and planted faults -------------------------------------------------------------------------------------


@compiled
def test_compiled_code_is_the_same_for_tensors_at_odd_places() -> None:
    from tests.decomfl_lab.noise.assembly import assembly

    aligned, odd = (
        re.findall(
            r"^\t(?!\.)[^;/]*;", assembly("run_program", (torch.bfloat16, torch.float32), aligned=aligned), re.MULTILINE
        )
        for aligned in (True, False)
    )
    assert aligned == odd
    assert len(odd) > 500


@compiled
@pytest.mark.parametrize(("kernel", "dtypes"), sampled(WITH_PRODUCTS, 2))
def test_the_check_of_the_compiled_code_can_fail(kernel: str, dtypes: tuple[torch.dtype, ...]) -> None:
    from tests.decomfl_lab.noise.assembly import assembly

    code = assembly(kernel, dtypes, fused=True)
    kind = "f64" if torch.float64 in dtypes else "f32"
    assert any(found.endswith(kind) for found in FUSED.findall(code))
    assert CONTRACTIBLE.search(code)
