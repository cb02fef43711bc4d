"""Bits are the same with other instructions, other libraries of linear algebra, other compilers' targets, on ARM.

``make anywhere`` runs all of it; ``make test`` the two that differ most.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.run import Run
from tests.anywhere.facts import CONTROL, PLANT, facts
from tests.cases import rows_of
from tests.decomfl_lab.carriers.killed import Processes, free_address

ROOT = Path(__file__).parents[2]
SMALL = {"data": "digits", "clients": 4, "sampled": 2, "rounds": 4, "eval_every": 2, "batch_size": 8, "lr": 0.01}
RUNS = {
    "decomfl": TrainConfig("decomfl", model="mlp", momentum=0.9, local_steps=4, perturbations=3, **SMALL),
    "projection": TrainConfig("decomfl-projection", model="logistic", perturbations=3, split="dirichlet", **SMALL),
    "hiso": TrainConfig("hiso", model="logistic", perturbations=3, **SMALL),
    "sphere": TrainConfig("decomfl", model="mlp", distribution="sphere", perturbations=2, **SMALL),
}

PLACES = rows_of(__file__)
OLDEST = {
    name: value
    for place in ("the oldest instructions of torch", "OpenBLAS for Nehalem")
    for name, value in PLACES[place].items()
}
OLDEST |= PLACES["MKL with SSE4.2"] | PLACES["numba for any x86-64"] | PLACES["oneDNN with SSE4.1"]
CASES = [
    pytest.param({}, id="this machine", marks=pytest.mark.thorough),
    # Compiling for another processor takes long: it is in the next.
    pytest.param(
        {name: OLDEST[name] for name in OLDEST if name[:5] != "NUMBA"},
        id="the oldest but for numba",
        marks=pytest.mark.thorough,
    ),
    pytest.param(OLDEST, id="all of the oldest", marks=pytest.mark.thorough),
    *(pytest.param(change, id=place, marks=pytest.mark.thorough) for place, change in PLACES.items()),
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for name, config in RUNS.items():
        Run(config).train(out=folder / name)
    return folder


@pytest.fixture(scope="module")
def here(logs: Path) -> dict[str, str]:
    return facts(logs)


def elsewhere(command: list[str], folder: Path, cache: Path, **change: str) -> dict[str, str]:
    """The facts as another process finds them."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OPENBLAS_CORETYPE", "DECOMFL_DATA")
    }
    environment |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)} | change
    if any(name.startswith("NUMBA") for name in change):
        environment["NUMBA_CACHE_DIR"] = str(cache)
    command = [*command, "-m", "tests.anywhere.facts", str(folder)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])["facts"]
    return found


@pytest.mark.parametrize("change", CASES)
def test_bits_are_the_same_with_other_instructions(
    change: dict[str, str], logs: Path, here: dict[str, str], tmp_path: Path
) -> None:
    there = elsewhere([sys.executable], logs, tmp_path, **change)
    differ = {name for name, found in there.items() if found != here[name]}
    assert not {name for name in differ if not name.startswith(CONTROL)}
    if "ATEN_CPU_CAPABILITY" in change and change["ATEN_CPU_CAPABILITY"] == "default":
        # The change took effect: torch's own normal numbers are others.
        assert f"{CONTROL}: normal numbers in torch" in differ


@pytest.mark.thorough
def test_a_client_with_the_oldest_instructions_joins_and_ends_with_the_servers_digest(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra stream is not installed")
    address = free_address()
    out, keys = tmp_path / "fl", tmp_path / "fl" / "keys"
    flags = "--data digits --model mlp --clients 2 --sampled 2 --perturbations 3 --batch-size 8 --rounds 5"
    with Processes(tmp_path, tmp_path) as own:
        own.start("server", "serve", *flags.split(), "--out", str(out), "--bind", address, "--json")
        own.wait(lambda: len(list(keys.glob("client-*.key"))), 2)
        for i, change in enumerate(({}, OLDEST)):
            key = str(keys / f"client-{i}.key")
            cache = {"NUMBA_CACHE_DIR": str(tmp_path / str(i))}
            own.start(f"client {i}", "join", address, "--client", str(i), "--key", key, "--json", **cache | change)
        digests = {own.result(name)["digest"] for name in own.running}
    assert len(digests) == 1


@pytest.mark.thorough
def test_bits_are_the_same_on_arm(logs: Path, here: dict[str, str], tmp_path: Path) -> None:
    folder = Path(os.environ.get("DECOMFL_AARCH64", "/nowhere"))
    emulator, python = folder / "host/usr/bin/qemu-aarch64-static", folder / "root/usr/bin/python3.11"
    if not python.exists():
        pytest.skip(
            "there is no Python for aarch64 here (tests/anywhere/aarch64.sh fetches one, DECOMFL_AARCH64 names it)"
        )
    command = [str(emulator), "-L", str(folder / "root"), str(python)]
    path = os.pathsep.join([str(ROOT), str(folder / "site")])
    there = elsewhere(command, logs, tmp_path, PYTHONPATH=path)
    assert len(there) > 15
    assert not {name for name, found in there.items() if found != here[name] and not name.startswith(CONTROL)}


@pytest.mark.thorough
def test_a_table_that_is_fitted_by_linear_algebra_is_noticed(here: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "no logs").mkdir()
    places = [PLACES["OpenBLAS for Nehalem"], PLACES["OpenBLAS for Haswell"]]
    found = [elsewhere([sys.executable], tmp_path / "no logs", tmp_path, **place, **{PLANT: "1"}) for place in places]
    assert len({each["a table fitted to shares"] for each in [*found, here]}) > 1


@pytest.mark.thorough
def test_a_bit_that_differs_is_noticed(logs: Path, here: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from decomfl_lab.noise import spec, starts

    monkeypatch.setattr(starts, "TAG_START", spec.TAG_START + 1)
    with pytest.raises(AssertionError):
        facts(logs)
