"""Measuring seconds, and measuring in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from decomfl_lab.children import environment
from decomfl_lab.errors import InputError

__all__ = ["apart", "fastest", "in_turns"]

Name = TypeVar("Name", bound=Hashable)

_SECONDS = 0.4
"""Time that a measurement should last."""
_LONG = 5.0
"""Seconds beyond which a measurement is not repeated."""


def fastest(work: Callable[[], None], synchronize: Callable[[], None] = lambda: None) -> float:
    """Seconds of the fastest of several runs; the first, in which pages fault, counts only if it is very long."""
    times: list[float] = []
    while len(times) < 4 or (sum(times) < _SECONDS and len(times) < 1000):
        started = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - started)
        if times[0] > _LONG:
            return times[0]
        if sum(times) > _LONG and len(times) > 1:
            break
    return min(times[1:])


def in_turns(
    ways: Mapping[Name, Callable[[], object]], repeats: int, *, between: Callable[[], object] = int
) -> dict[Name, float]:
    """Seconds of the fastest run of each way; they take turns, so that what slows the machine slows all.

    Args:
        ways: What is timed.
        repeats: How often.
        between: What is done after every run, and not timed.
    """
    seconds = dict.fromkeys(ways, math.inf)
    for _ in range(repeats):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
            between()
    return seconds


def apart(
    what: str,
    module: str,
    *arguments: str,
    given: str = "",
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Any:
    """What a module prints as JSON in a process of its own; InputError that names ``what`` if it does not end well.

    Args:
        what: What is measured, in words.
        module: The module that is run.
        arguments: Its arguments.
        given: What it reads.
        env: Changes of the environment.
        within: A command that runs the process.
    """
    command = [*within, sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=False, env=environment(env))
    if done.returncode:
        raise InputError(f"measuring {what} must end well, but the process ended with {done.returncode}")
    return json.loads(done.stdout)
