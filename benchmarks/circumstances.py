"""What a benchmark was run on: the command, the machine, how busy others kept it, and when."""

import inspect
import os
import platform
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from decomfl_lab.cli.screen import ARGUMENTS

_BEGIN = "benchmarks.begin"


def begin() -> None:
    """Note how much the processor has worked so far; called before a benchmark is loaded."""
    click.get_current_context().meta[_BEGIN] = _clocks()


def circumstances(meanings: Mapping[str, str]) -> dict[str, Any]:
    """Of the benchmark that runs: what it is, its command line, the date, the machine, its load, and versions.

    The load is the share of all processors' time that other processes took since ``begin``; where the system has no
    /proc/stat, the load average of the last minute for each processor, this process included.

    Args:
        meanings: What the columns of its tables are.
    """
    context = click.get_current_context()
    meta = context.meta
    columns = [f'"{head}": {meaning}' for head, meaning in meanings.items()]
    return {
        "about": f"{inspect.cleandoc(context.command.help or '')}\n\n{' '.join(columns)}".strip(),
        "command": shlex.join(["decomfl", *meta[ARGUMENTS]]),
        **provenance(),
        "load": round(_load(meta[_BEGIN]), 3),
    }


def provenance() -> dict[str, Any]:
    """The date, the machine, and versions."""
    from decomfl_lab.provenance import code_version

    # The processor's name, as far as the system tells.
    info = Path("/proc/cpuinfo")
    named = (line for line in info.read_text().splitlines() if line.startswith("model name")) if info.exists() else ()
    processor = next(iter(named), f":{platform.processor() or platform.machine()}").partition(":")[2].strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{processor}, {os.cpu_count()} processors, {platform.system()}",
        "code": code_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "torch", "numba")},
    }


def _clocks() -> tuple[float, float | None, float]:
    """Now, the busy seconds of all processors since the start, and those of this process and its ended children."""
    own = os.times()
    busy = None  # where the system does not say
    stat = Path("/proc/stat")
    if stat.exists():
        user, nice, system, _idle, _wait, irq, softirq = map(int, stat.read_text().split()[1:8])
        busy = float((user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"))
    return time.monotonic(), busy, own.user + own.system + own.children_user + own.children_system


def _load(start: tuple[float, float | None, float]) -> float:
    """See ``circumstances``."""
    (then, busy_then, own_then), (now, busy, own) = start, _clocks()
    processors = os.cpu_count() or 1
    if busy is None or busy_then is None:
        return os.getloadavg()[0] / processors
    share = ((busy - busy_then) - (own - own_then)) / ((now - then) * processors)
    return min(max(0.0, share), 1.0)  # the system counts by hundredths of a second, and a moment has few of them
