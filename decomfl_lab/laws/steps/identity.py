"""Laws of identities: who has whose noise. Needs numpy and hypothesis.

Noise belongs to somebody: a direction to a step, a prompt and a member of the population, and all tensor-parallel ranks
have one. A function ``noise(**who)`` says what somebody has, a seed or an array. Its coordinates are *own*, where
another number is another one's noise, or *shared*, where it is not:

    def noise(step, prompt, member, tp):
        return seed_of(step, prompt, member)

    print(verify_identity(noise, own={"step": 4, "prompt": 3, "member": 4}, shared={"tp": 2}))

The numbers say how many values of each coordinate are tried: 0, 1, ... Two who share noise by mistake do so for some
numbers only, as those of ``prompt % 3``, so let them be larger than what the code could count modulo.

Every combination of coordinates is asked once, in order. Then hypothesis draws whom to ask in which order, and how
often, as a process does that has some of the work, or does it in other chunks. A law that is broken names two of them.
"""

import itertools
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from decomfl_lab.laws.outcomes import Outcome, Outcomes, generators, suite

MOST = 20_000
"""Combinations that are asked at most."""
ALIKE = 6.0
"""Standard deviations of the cosine of independent arrays, beyond which they are held to be one noise."""

IDENTITY_LAWS: dict[str, str] = {
    "repeatable": "whoever is asked twice has the same noise",
    "each-coordinate-changes-it": "another number of one own coordinate alone is other noise",
    "identities-differ": "no two have the same noise",
    "shared-agree": "shared coordinates, and other processes, change nothing",
    "order-does-not-matter": "noise does not depend on who was asked before",
    "randomness-of-others-stays": "asking leaves the random generators of Python, numpy and torch as they were",
    "off-draws-anew": "with the sharing switched off, shared coordinates have noise of their own",
}
"""The laws by name, and what they say."""

Who = tuple[tuple[str, int], ...]
Rows = Sequence[tuple[Who, Any]]
Noise = Callable[..., Any]
Check = Callable[[], None] | str
"""What a law does, or why it is skipped."""


class _BrokenError(AssertionError):
    """Two who are what they must not be to each other."""


def _named(who: Who) -> str:
    return f"({', '.join(f'{name} {value}' for name, value in who)})"


def _plain(value: Any, bits: int | None) -> Any:
    """A seed as something that can be compared, or an array in float64; of a seed the bits that count."""
    for step in ("detach", "cpu", "double", "numpy"):  # of a tensor of torch, whatever its type and device
        if hasattr(value, "detach") or step == "numpy":
            value = getattr(value, step)() if hasattr(value, step) else value
    if isinstance(value, np.ndarray | list) and np.asarray(value).dtype.kind == "f":
        return np.asarray(value, np.float64).reshape(-1)
    if isinstance(value, np.ndarray | list | tuple):
        return tuple(_plain(part, bits) for part in np.asarray(value, object).reshape(-1))
    if value is None or value != value:  # nobody's noise is NaN
        raise ValueError(f"noise must be a seed or an array, got {value!r}")
    if isinstance(value, int | np.integer) and bits is not None:
        return int(value) % 2**bits
    return value.item() if isinstance(value, np.generic) else value


def _same(a: Any, b: Any) -> bool:
    """Whether this is the same noise, to the bit."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and bool(a == b)


def _alike(a: Any, b: Any) -> str:
    """How two noises that should be independent are one, in words; empty if they are not."""
    if _same(a, b):
        return "have the same noise"
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return ""
    n = min(a.size, b.size)
    norms = float(np.linalg.norm(a[:n]) * np.linalg.norm(b[:n]))
    cosine = float(a[:n] @ b[:n]) / norms if norms else 0.0
    most = min(max(ALIKE / math.sqrt(n), 0.1), 1 - 1e-9)  # of two numbers one is a multiple of the other
    return f"have noise of cosine {cosine:.3f}" if n > 1 and abs(cosine) > most else ""


class _Asked:
    """Somebody's noise, by coordinates: of a function, of one for each process, or of what processes wrote down."""

    def __init__(self, noise: Any, own: Mapping[str, int], shared: Mapping[str, int], bits: int | None) -> None:
        functions: Sequence[Noise] = list(noise) if isinstance(noise, list | tuple) else [noise]
        if not functions or not all(map(callable, functions)):
            raise ValueError(f"noise must be a function, or a list of one for each process, got {noise!r}")
        if len(functions) > 1 and "rank" not in {**own, **shared}:
            shared = {**shared, "rank": len(functions)}
        for name, sizes in (("own", own), ("shared", shared)):
            if not isinstance(sizes, Mapping) or not (sizes or name == "shared"):
                raise ValueError(f"{name} must be how many numbers of each coordinate are tried, got {sizes!r}")
        if bits is not None and bits not in range(1, 65):
            raise ValueError(f"bits must be in 1..64, got {bits!r}")
        for name, size in {**own, **shared}.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"the numbers of coordinate {name!r} must be at least 1, got {size!r}")
        if both := own.keys() & shared.keys():
            raise ValueError(f"coordinates must be own or shared, got {', '.join(sorted(both))} as both")
        if len(functions) > 1 and {**own, **shared}["rank"] != len(functions):
            raise ValueError(f"the numbers of coordinate 'rank' must be those of the {len(functions)} functions")
        if (count := math.prod([*own.values(), *shared.values()])) > MOST:
            raise ValueError(f"combinations of coordinates must be at most {MOST:,}, got {count:,}")
        self._functions, self._bits = functions, bits
        self.own, self.shared = dict(own), dict(shared)

    def everybody(self) -> list[Who]:
        """Every combination, in order."""
        sizes = {**self.own, **self.shared}
        return [tuple(zip(sizes, values, strict=True)) for values in itertools.product(*map(range, sizes.values()))]

    def rows(self) -> Rows:
        """What everybody has, in order, and once more."""
        return [(who, self(who)) for who in self.everybody() * 2]

    def __call__(self, who: Who) -> Any:
        coordinates = dict(who)
        rank = coordinates.pop("rank", 0) if len(self._functions) > 1 else 0
        return _plain(self._functions[rank](**coordinates), self._bits)


def _require_distinct(rows: Rows, owner: Callable[[Who], Who], apart: int | None) -> None:
    """No two owners have one noise; where ``apart`` is 1, of those alone that differ in one coordinate."""
    seen: dict[Any, Who] = {}
    first: dict[Who, tuple[Who, Any]] = {}
    for who, value in rows:
        first.setdefault(owner(who), (who, value))
    for mine, (who, value) in first.items():
        if apart is None and not isinstance(value, np.ndarray):  # each once, by a table
            if (other := seen.setdefault(value, who)) != who:
                raise _BrokenError(f"{_named(other)} and {_named(who)} have the same noise: {value!r}")
            continue
        for yours, (other, theirs) in first.items():
            if yours == mine:
                break
            differ = sum(a != b for a, b in zip(mine, yours, strict=True))
            if (apart is None or differ == apart) and (how := _alike(value, theirs)):
                raise _BrokenError(f"{_named(other)} and {_named(who)} {how}")


def _require_shared(rows: Rows, owner: Callable[[Who], Who]) -> None:
    """Whoever shares an owner has its noise."""
    first: dict[Who, tuple[Who, Any]] = {}
    for who, value in rows:
        other, theirs = first.setdefault(owner(who), (who, value))
        if not _same(value, theirs):
            again = "asked again has" if who == other else f"and {_named(who)} have"
            raise _BrokenError(f"{_named(other)} {again} other noise: {_shown(theirs)} and {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value[:3].tolist()) if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."


def _drawn(asked: _Asked, cases: int, seed: int) -> None:
    """Ask in drawn orders and numbers; each has what it had when all were asked in order."""
    everybody = asked.everybody()
    known = {who: asked(who) for who in everybody}
    broken: list[str] = []

    @hypothesis_seed(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.lists(st.sampled_from(everybody), min_size=1, max_size=8))
    def ask(order: list[Who]) -> None:
        for n, who in enumerate(order):
            if not _same(asked(who), known[who]):
                before = ", ".join(map(_named, order[:n])) or "others"
                broken.append(f"{_named(who)} has other noise when {before} were asked before it")
                raise _BrokenError(broken[-1])

    try:
        ask()
    except Flaky:  # what was asked in an earlier order counts, too
        raise _BrokenError(broken[-1]) from None


def verify_identity(
    noise: Any,
    own: Mapping[str, int],
    shared: Mapping[str, int] | None = None,
    *,
    off: Noise | None = None,
    bits: int | None = None,
    laws: Iterable[str] = (),
    cases: int = 50,
    seed: int = 0,
) -> Outcomes:
    """Put a function that says who has whose noise to the laws.

    Args:
        noise: ``noise(**who)``, a seed or an array; or a list of such functions, one for each process, whose number is
            then the coordinate "rank", a shared one unless it is named among the own ones.
        own: {coordinate: how many numbers of it are tried}, of which each has noise of its own.
        shared: Likewise, of which all have the same.
        off: The same function with the sharing switched off, where it can be: each number then has noise of its own.
        bits: How many bits of a seed the generator keeps, such as 32 for torch's on the CPU; None for all.
        laws: Names of the laws to try, by default all.
        cases: How many drawn orders are tried.
        seed: Seed of these.

    Returns:
        The outcomes, one a law; print them, or read ``broken``.

    Raises:
        ValueError: If a coordinate, a size or a law is none.
    """
    sharing = _Asked(noise, own, shared or {}, bits)
    if not (off is None or callable(off)):
        raise ValueError(f"off must be a function, got {off!r}")
    names = list(laws) or list(IDENTITY_LAWS)
    if unknown := [name for name in names if name not in IDENTITY_LAWS]:
        raise ValueError(f"laws must be among {', '.join(IDENTITY_LAWS)}, got {unknown[0]!r}")

    def untouched() -> None:
        for who in sharing.everybody():
            before = generators()
            sharing(who)
            if generators() != before:
                raise _BrokenError(f"asking for {_named(who)} moves a random generator that others use, too")

    checks: dict[str, Check] = {
        **_of_rows(cache(sharing.rows), sharing.own, sharing.shared),
        "order-does-not-matter": lambda: _drawn(sharing, cases, seed),
        "randomness-of-others-stays": untouched,
        "off-draws-anew": "no function without the sharing is given (off)",
    }
    if off is not None:
        unshared = _Asked(off, {**sharing.own, **sharing.shared}, {}, bits)
        checks["off-draws-anew"] = lambda: _require_distinct(unshared.rows(), lambda who: who, None)
    count = len(sharing.everybody())
    return Outcomes(_outcome(name, checks[name], count) for name in names)


def _of_rows(rows: Callable[[], Rows], own: Collection[str], shared: Collection[str]) -> dict[str, Check]:
    """The laws that rows of who has what can be put to, whoever wrote them."""

    def owner(who: Who) -> Who:
        return tuple((name, value) for name, value in who if name in own)

    return {
        "repeatable": lambda: _require_shared(rows(), lambda who: who),
        "each-coordinate-changes-it": lambda: _require_distinct(rows(), owner, 1),
        "identities-differ": lambda: _require_distinct(rows(), owner, None),
        "shared-agree": (lambda: _require_shared(rows(), owner)) if shared else "no coordinate is shared",
    }


def _outcome(law: str, check: Check, count: int) -> Outcome:
    """What becomes of a law, which has ``count`` cases."""
    if isinstance(check, str):
        return Outcome(law, IDENTITY_LAWS[law], "skipped", 0, check)
    began, status, why = time.perf_counter(), "holds", ""
    try:
        check()
    except _BrokenError as error:
        status, why = "broken", str(error)
    except (Exception, SystemExit) as error:  # whatever somebody else's function raises
        status, why = "crashed", f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    return Outcome(law, IDENTITY_LAWS[law], status, count, why, seconds=seconds)  # type: ignore[arg-type]


def read_identities(path: Path | str, shared: Sequence[str] = (), laws: Iterable[str] = ()) -> Outcomes:
    """The laws of what processes have written down, a JSON object a line: its coordinates, and "noise".

        {"step": 0, "prompt": 1, "tp": 0, "noise": 1234567}

    Args:
        path: The file.
        shared: The shared coordinates; all others are own ones.
        laws: Names of the laws to try, by default all that rows can be put to.

    Raises:
        ValueError: If a line is no such object, or its coordinates are not those of the first line.
    """
    rows: list[tuple[Who, Any]] = []
    for n, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {n} of {path} must be JSON, got {line[:60]!r}") from error
        if not isinstance(entry, dict) or "noise" not in entry:
            raise ValueError(f"line {n} of {path} must be an object with its noise, got {line[:60]!r}")
        value = _plain(entry.pop("noise"), None)
        who = tuple(sorted(entry.items()))
        if rows and [name for name, _ in who] != [name for name, _ in rows[0][0]]:
            raise ValueError(f"line {n} of {path} must have the coordinates of the first one, got {_named(who)}")
        rows.append((who, value))
    if not rows:
        raise ValueError(f"{path} must have lines, got none")
    coordinates = [name for name, _ in rows[0][0]]
    for name in shared:
        if name not in coordinates:
            raise ValueError(f"coordinates must be among {', '.join(coordinates)}, got {name!r}")
    if not coordinates:
        raise ValueError(f"lines of {path} must have coordinates beside their noise, got none")
    checks = _of_rows(lambda: rows, set(coordinates) - set(shared), shared)
    for law in laws:
        if law not in checks:
            raise ValueError(f"laws of lines must be among {', '.join(checks)}, got {law!r}")
    return Outcomes(_outcome(law, checks[law], len(rows)) for law in laws or checks)


def identity_suite(
    noise: Any,
    own: Mapping[str, int],
    shared: Mapping[str, int] | None = None,
    *,
    xfail: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Tests for pytest, one a law, to be given a name that begins with ``test_``.

    Args:
        noise: See ``verify_identity``, as the other arguments.
        own: The own coordinates.
        shared: The shared ones.
        xfail: Laws that are known not to hold yet, each with the reason.
        options: ``off``, ``bits``, ``cases``, ``seed``.
    """
    return suite(IDENTITY_LAWS, lambda law: verify_identity(noise, own, shared, laws=[law], **options)[0], xfail or {})
