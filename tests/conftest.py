"""Settings for every test: Hypothesis profiles, one torch thread, no data from outside unless asked for."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "lab",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lab")
torch.set_num_threads(1)
gc.disable()  # until all tests are imported: what they import stays


def pytest_collection_finish() -> None:
    gc.freeze()  # no collection looks at what stays
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries look at their end for what was not freed


@pytest.fixture(autouse=True)
def _embedded_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests see the embedded data and an empty cache, whatever the machine has."""
    for name in ("DECOMFL_DATA", "DECOMFL_DOWNLOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an empty one; what is imported from it is not found afterwards."""
    folder = tmp_path / "here"  # beside it is the cache of the libraries
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != ""])
    return folder


@pytest.fixture
def data_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path | str], None]:
    """Data sets are looked for in this folder from now on."""
    return lambda folder: monkeypatch.setenv("DECOMFL_DATA", str(folder))


@pytest.fixture
def in_place_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Another module stands in for a library from now on."""
    return lambda library, module: monkeypatch.setitem(sys.modules, library, module)


@pytest.fixture
def without(in_place_of: Callable[[str, Any], None]) -> Callable[[str], None]:
    """A library is not installed from now on."""
    return lambda library: in_place_of(library, None)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[..., Any]], None]:
    """``plant(owner, name, wrong)`` puts a fault in a function's place: it is called as wrong(right, ...)."""

    def put(owner: Any, name: str, wrong: Callable[..., Any]) -> None:
        right = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *of, **named: wrong(right, *of, **named))

    return put


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of test vectors for other languages, which tests read alone."""
    from decomfl_lab.laws.conformance import write_conformance  # which not every process of tests needs

    folder = tmp_path_factory.mktemp("vectors")
    write_conformance(folder)
    return folder
