"""What is refused in one line: a table of what is given and what the error says of it, and the line of a command."""

import tomllib
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError

Attempt = Callable[..., Any]


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


def rows_of(test: str, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table in refusals.toml, beside a test (its ``__file__``)."""
    tables = tomllib.loads(Path(test).with_name("refusals.toml").read_text(encoding="utf-8"))
    return [tuple(row) for row in tables[table]]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command that is refused says: one line on stderr, nothing on stdout, and exit code 2."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("decomfl: error: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
