"""The paper's source, for the tests of what is said of it."""

import os
from pathlib import Path

import pytest

from tests.theory.findings.source import TexSource, parse


@pytest.fixture(scope="module")
def paper() -> TexSource:
    path = os.environ.get("DECOMFL_PAPER")
    if not path:
        pytest.skip("needs the paper's source (DECOMFL_PAPER)")
    return parse(Path(path).read_bytes().decode())
