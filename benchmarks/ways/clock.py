"""Measuring seconds, and measuring in a process of its own."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from decomfl_lab.processes import environment

Name = TypeVar("Name", bound=Hashable)

_SECONDS = 0.4  # time that a measurement should last
_LONG = 5.0  # seconds beyond which a measurement is not repeated


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


def in_turns(ways: Mapping[Name, Callable[[], object]], repeats: int) -> dict[Name, float]:
    """Seconds of the fastest run of each way; they take turns, so that what slows the machine slows all."""
    seconds = dict.fromkeys(ways, math.inf)
    for _ in range(repeats):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    return seconds


@dataclass(frozen=True)
class ProcessOutcome:
    """How a command in a process of its own ended."""

    exit: int | None  # its exit code; None where the time was over before it ended
    found: Any  # what it printed as JSON; None where it printed anything else
    said: str  # the end of what it said on stderr, and of what it printed where that is no JSON
    seconds: float  # how long it took


def apart(words: Sequence[str], *, given: str = "", seconds: float | None = None) -> ProcessOutcome:
    """Run Python in a process of its own, with these arguments; what is ``given`` it reads on stdin.

    It may take so many seconds, by default as many as it needs.
    """
    began = time.monotonic()
    try:
        words = [sys.executable, *words]
        ended = subprocess.run(words, input=given, capture_output=True, text=True, timeout=seconds, env=environment())
    except subprocess.TimeoutExpired:
        return ProcessOutcome(None, None, f"the time was over after {seconds:.0f} s", time.monotonic() - began)
    taken = time.monotonic() - began
    errors = ended.stderr.strip()[-500:]
    try:
        return ProcessOutcome(ended.returncode, json.loads(ended.stdout), errors, taken)
    except ValueError:  # it failed before it printed anything
        return ProcessOutcome(ended.returncode, None, f"{ended.stdout[-500:]}{errors}", taken)
