"""The cases of a test: rows of a file beside it, samples of what is wide, tables of what is refused in one line."""

import tomllib
from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError

Attempt = Callable[..., Any]


def rows_of(test: str) -> dict[str, Any]:
    """The tables of the file beside a test, whose own path (``__file__``) is given."""
    return tomllib.loads(Path(test).with_suffix(".toml").read_text(encoding="utf-8"))


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


def refuses(*rows: tuple[Any, ...], error: type[Exception] = InputError) -> Callable[[Attempt], Attempt]:
    """Make a test of an attempt that has to fail with every row.

    The first parameters of the attempt are the row but for its last column, a regular expression that the error's
    message has to match; further ones are fixtures.
    """

    def table(attempt: Attempt) -> Attempt:
        own = signature(attempt)
        columns = [*own.parameters][: len(rows[0]) - 1]

        @wraps(attempt)
        def refused(*, refusal: str, **given: Any) -> None:
            with pytest.raises(error, match=refusal) as caught:
                attempt(**given)
            assert "\n" not in str(caught.value)

        # pytest reads from it what to give: columns, fixtures and the refusal.
        last = Parameter("refusal", Parameter.KEYWORD_ONLY)
        refused.__signature__ = own.replace(parameters=[*own.parameters.values(), last])  # type: ignore[attr-defined]
        return pytest.mark.parametrize((*columns, "refusal"), rows)(refused)

    return table


def calls(rows: list[list[Any]], *functions: Callable[..., Any]) -> list[tuple[Attempt, str]]:
    """Rows for ``refuses`` of a function's name, its arguments (a list) or options (a table), and the refusal."""
    found: list[tuple[Attempt, str]] = []
    for name, given, refusal in rows:
        (own,) = (function for function in functions if function.__name__ == name)
        found.append((partial(own, **given) if isinstance(given, dict) else partial(own, *given), refusal))
    return found


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command that is refused says: one line on stderr, nothing on stdout, and exit code 2."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("decomfl: error: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
