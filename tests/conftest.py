"""Settings for every test: Hypothesis profiles, one torch thread, no data from outside unless asked for."""

import gc
from pathlib import Path

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
    gc.enable()


@pytest.fixture(autouse=True)
def _embedded_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests see the embedded data and an empty cache, whatever the machine has."""
    for name in ("DECOMFL_DATA", "DECOMFL_DOWNLOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of test vectors for other languages, which tests read alone."""
    from decomfl_lab.laws.conformance import write_conformance  # which not every process of tests needs

    folder = tmp_path_factory.mktemp("vectors")
    write_conformance(folder)
    return folder
