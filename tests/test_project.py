"""What the project says of itself is true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import decomfl_lab
from theory.bounds import STATEMENTS
from theory.findings.registry import ENTRIES

ROOT = Path(__file__).parents[1]


def _project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def test_the_readmes_counts_are_those_of_the_code() -> None:
    from decomfl_lab.laws import LAWS
    from decomfl_lab.laws.faults import FAULTS

    assert f"{len(LAWS)} laws, {len(FAULTS)} planted faults" in (ROOT / "README.md").read_text()


def test_versions_agree() -> None:
    assert _project()["version"] == decomfl_lab.__version__


def test_every_dependency_has_a_tested_version() -> None:
    pinned = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    project = _project()
    extras = project["optional-dependencies"]
    tested = "dev", "docs", "llm", "notebooks", "peers", "stream", "tensorboard", "trackio", "wandb"
    wanted = [*project["dependencies"], *(item for name in tested for item in extras[name])]  # type: ignore[misc,index]
    names = {re.split(r"[<>=]", item)[0] for item in wanted}
    assert {name for name in names if not name.startswith("decomfl-lab[")} <= pinned


def test_notation_spells_every_symbol_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `", (ROOT / "NOTATION.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows)) > 15


def test_the_readme_counts_statements_and_corrected_bounds() -> None:
    corrected = sum(variant == "corrected" for _, variant in STATEMENTS)
    counted = f"{len(ENTRIES)} statements of the paper with findings, {corrected} corrected bounds with proofs"
    assert counted in (ROOT / "README.md").read_text()
