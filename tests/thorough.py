"""What of a wide test runs in ``make test``: a sample of its cases; the others are for ``make thorough``."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], quick: int) -> list[Any]:
    """The cases for ``parametrize``: all but ``quick``, evenly spread, are marked. A tuple is several values."""
    every = list(cases)
    kept = {n * len(every) // quick for n in range(quick)}
    marks = [() if n in kept else pytest.mark.thorough for n in range(len(every))]
    values = [case if isinstance(case, tuple) else (case,) for case in every]
    return [pytest.param(*each, marks=mark) for each, mark in zip(values, marks, strict=True)]


def cases(quick: int, thorough: int) -> pytest.MarkDecorator:
    """The argument ``cases``: how many random cases are tried on an errand, and how many when there is time."""
    return pytest.mark.parametrize("cases", [quick, pytest.param(thorough, marks=pytest.mark.thorough)])
