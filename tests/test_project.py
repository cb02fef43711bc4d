"""What the project says of itself is true; the names of ``hessian`` and ``theory`` are there, explained, and light."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import benchmarks
import decomfl_lab
import figures
import hessian
import paper_repro
import theory
from decomfl_lab.errors import InputError
from theory.bounds import STATEMENTS
from theory.findings.registry import ENTRIES

ROOT = Path(__file__).parents[1]
METHODS = (FunctionType, property, cached_property, classmethod, staticmethod)


def _project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def test_the_readmes_counts_are_those_of_the_code() -> None:
    from decomfl_lab.laws import FAULTS, IDENTITY_LAWS, LAWS, UPDATE_LAWS

    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(LAWS)} laws of DeComFL, {len(FAULTS)} planted faults; {len(UPDATE_LAWS)} laws of" in readme
    assert f"and {len(IDENTITY_LAWS)} of [who shares noise]" in readme
    corrected = sum(variant == "corrected" for _, variant in STATEMENTS)
    assert f"{len(ENTRIES)} statements of the paper with findings, {corrected} corrected bounds with proofs" in readme


def test_versions_agree() -> None:
    assert _project()["version"] == decomfl_lab.__version__


def test_every_dependency_has_a_tested_version() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    project = _project()
    extras = project["optional-dependencies"]
    tested = "dev", "docs", "llm", "notebooks", "peers", "stream", "tensorboard", "wandb"
    wanted = [*project["dependencies"], *(item for name in tested for item in extras[name])]  # type: ignore[misc,index]
    names = {re.split(r"[<>=]", item)[0] for item in wanted}
    assert {name for name in names if not name.startswith("decomfl-lab[")} <= pinned


def test_notation_spells_every_symbol_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `", (ROOT / "NOTATION.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows)) > 15


@pytest.mark.thorough
def test_the_readmes_snippets_have_types_where_the_wheel_is_installed(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = tmp_path.glob("env/lib/*/site-packages")
    zipfile.ZipFile(built).extractall(site)
    (site / "other.pth").write_text(sysconfig.get_path("purelib"))  # what the wheel needs
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    told = ("run", "kappa", "laws.verify(Mine())", "theory.statement('theorem-2')")
    (tmp_path / "mine.py").write_text("\n".join([*snippets, *(f"reveal_type({each})" for each in told)]))
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n")
    python = tmp_path / "env" / "bin" / "python"
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--python-executable", str(python), "mine.py"]
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = re.findall(r'Revealed type is "(.*?)"', shown)
    assert [each.rpartition(".")[2] for each in found] == ["Run", "EffectiveRank", "Outcomes", "Statement"]


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


def _silent(package: ModuleType) -> Iterator[str]:
    """The public methods that have no docstring, neither where they stand nor in a class above."""
    for name in {info.name for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")}:
        try:
            module = importlib.import_module(name)
        except (ImportError, InputError):  # of an extra that is not installed, or a GPU that is not there
            continue
        owners = [value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == name]
        for owner in owners:
            for method, value in vars(owner).items():
                public = (
                    isinstance(value, METHODS) and not owner.__name__.startswith("_") and not method.startswith("_")
                )
                told = any(getattr(vars(base).get(method), "__doc__", None) for base in owner.__mro__)
                if public and not told:
                    yield f"{name}.{owner.__name__}.{method}"


@pytest.mark.parametrize("package", [benchmarks, decomfl_lab, figures, hessian, paper_repro, theory])
def test_every_public_method_has_a_docstring_of_its_own_or_of_a_class_above_it(package: ModuleType) -> None:
    assert [*_silent(package)] == []


def test_a_method_without_a_docstring_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian.operators.operator.Operator.matvec, "__doc__", None)
    assert "hessian.operators.operator.Operator.matvec" in [*_silent(hessian)]


def _results() -> Iterator[object]:
    """What the rooms return, beside the readings of ``hessian``."""
    import torch

    import decomfl_lab as lab
    from decomfl_lab import laws

    x, model = torch.randn(40, 3), torch.nn.Linear(3, 2)
    loss, examples = torch.nn.functional.cross_entropy, (x, (x[:, 0] > 0).long())
    run = lab.train(
        model, loss, [examples, examples], sampled=1, rounds=2, lr=0.01, method=lab.DeComFL(perturbations=2)
    )
    yield from (run, run.traffic, run.verify(), run.dataset, run.check_traffic())
    H = hessian.curvature(model, loss, [examples])
    yield from (H, hessian.MeanLoss(model, loss, [examples]), hessian.lanczos(H, steps=3, seed=0))
    statement, problem = theory.statement("theorem-2"), theory.quadratic(d=100, kappa=5, D=1.0, sigma=0.1)
    yield from (statement, theory.check(statement, problem, m=2, M=4, P=2, R=5))
    outcomes = laws.verify(laws.Implementation(), laws=["revert-leaves-every-bit"])
    yield from (outcomes, outcomes[0])


def test_every_result_is_a_line_in_a_repr_that_begins_with_what_it_is() -> None:
    for found in _results():
        line = repr(found)
        assert "\n" not in line, line
        assert len(line) < 240, line
        assert line.startswith(f"<{type(found).__name__}"), line
