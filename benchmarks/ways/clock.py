"""Measuring seconds."""

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

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
