"""The names of ``hessian`` and ``theory``: all there and explained, nothing heavy loaded before one is asked for."""

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import hessian
import theory

HEAVY = {"hessian": {"torch"}, "theory": {"numpy", "scipy", "sympy", "torch", "decomfl_lab"}}
OF_A_ROOM = {"printed", "symbols"}
"""Modules of rooms that are names of the whole."""


@pytest.mark.parametrize("name", HEAVY)
def test_the_import_loads_nothing_heavy_and_lists_every_name(name: str) -> None:
    code = f"import sys, {name} as of; print({{*of.__all__}} <= {{*dir(of)}}, {HEAVY[name]} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


@pytest.mark.parametrize("package", [hessian, theory])
def test_every_public_name_is_found_and_explained_and_hides_no_module(package: ModuleType) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    for name in modules:
        importlib.import_module(f"{package.__name__}.{name}")  # as a user may have done before
    assert len(package.__all__) > 25
    for name in package.__all__:
        found = getattr(package, name)
        assert isinstance(found, ModuleType) == (name in modules | OF_A_ROOM), name
        assert getattr(found, "__name__", name).rpartition(".")[2] == name
        assert found.__doc__, name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense
