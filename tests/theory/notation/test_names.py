"""The names of ``theory``: all there, in any order of imports, and none loaded before it is asked for."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import theory

ROOMS = {path.stem for path in Path(theory.__file__).parent.iterdir()} - {"__init__", "__pycache__"}
SUBMODULES = ROOMS | {"printed", "symbols"}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", theory.__all__)
def test_every_public_name_is_found_and_explained(name: str) -> None:
    found = getattr(theory, name)
    assert isinstance(found, ModuleType) == (name in SUBMODULES)  # a module of that name would hide it
    assert found.__doc__


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="No theory attribute proof"):
        _ = theory.proof


def test_import_theory_loads_nothing_heavy() -> None:
    heavy = "numpy", "scipy", "sympy", "torch", "decomfl_lab"
    assert fresh(f"import sys, theory; print([name for name in {heavy} if name in sys.modules])") == "[]"
