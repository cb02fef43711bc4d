"""The five algorithms, line by line: transcribed to the letter, run in exact fractions, compared with their recursion.

Every printed line is a line of code with the paper's own indices. Symbols are tables that refuse to be read before
they were written, so that a wrong index is not repaired by the reader. A program *works* if every sampled client
rebuilds the server's model, and the server's model follows

    x_{r+1} = x_r − (η/P) Σ_k Σ_p (1/m) Σ_{i ∈ C_r} g_{i,r,p}^k z_{r,p}^k

with local steps from x_r, all without any rounding. A line is *correct* if the program with it works (every other line
mended) and the program with a fault planted in its place does not; a *typo* if the printed line breaks a program that
the mended one leaves working.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from theory.audit.entry import Entry, Evidence, Kind

__all__ = ["ENTRIES", "PROGRAMS", "Line", "Program", "entry", "outcome", "play"]

Vector = NDArray[Any]  # of Fractions, shape (2,)
Scalar = Callable[[int, Vector, Vector, Fraction], Fraction]

# A federation with lag: client 3 misses rounds 0 and 1, client 1 round 2.
M, m, K, R = 3, 2, 2, 4
SAMPLED: Final = ((1, 2), (1, 2), (2, 3), (1, 3))
ETA, MU = Fraction(1, 16), Fraction(1, 4)
START: Final = np.array([Fraction(1), Fraction(-2)], dtype=object)


def _normal(seed: int) -> Vector:
    """A direction that the seed determines."""
    return np.array([Fraction(seed * 7 % 11 - 5, 2), Fraction(seed * 5 % 13 - 6, 3)], dtype=object)


def _seed(r: int, k: int, p: int = 1) -> int:
    return 100 * r + 10 * k + p


def _sample(i: int, r: int, k: int) -> Fraction:
    """ξ_{i,r}^k."""
    return Fraction(3 * i + 2 * r + k, 7)


def _loss(i: int, x: Vector, xi: Fraction) -> Fraction:
    """f_i(x; ξ), with another curvature and another minimum for each client."""
    value: Fraction = sum(i * each * each / 2 - (i + xi) * each for each in x.tolist())
    return value


def _gradient(i: int, x: Vector) -> Vector:
    """∇f_i(x), at ξ = 0."""
    gradient: Vector = i * x - i
    return gradient


def _difference(i: int, x: Vector, z: Vector, xi: Fraction) -> Fraction:
    return (_loss(i, x + MU * z, xi) - _loss(i, x, xi)) / MU


def _projection(i: int, x: Vector, z: Vector, xi: Fraction) -> Fraction:
    del xi
    return cast(Fraction, _gradient(i, x) @ z)


def _recursion(P: int, scalar: Scalar) -> list[Vector]:
    """x_0 .. x_R, by local steps from x_r and the mean of the scalars; no tables, no seeds sent, no rebuilding."""
    models = [START]
    for r, clients in enumerate(SAMPLED):
        walks = dict.fromkeys(clients, models[r])
        total = 0 * START
        for k in range(1, K + 1):
            steps = {}
            for i in clients:
                Z = [_normal(_seed(r, k, p)) for p in range(1, P + 1)]
                steps[i] = sum((scalar(i, walks[i], z, _sample(i, r, k)) * z for z in Z), start=0 * START)
                walks[i] = walks[i] - ETA / P * steps[i]
            total = total + sum(steps.values(), start=0 * START) / m
        models.append(models[r] - ETA / P * total)
    return models


class UndefinedError(Exception):
    """A symbol is read before it has a value, or written where nothing was allocated."""


class Symbols(dict[Any, Any]):
    """The values of an indexed symbol of the paper, to the letter: x[i, r, k] is x_{i,r}^k.

    Args:
        name: Name of the symbol.
        values: Values that it has to begin with.
        allocated: The indices that it has room for; None for any.
    """

    def __init__(self, name: str, values: Mapping[Any, Any] = {}, allocated: Iterable[Any] | None = None) -> None:
        super().__init__(values)
        self._name = name
        self._allocated = None if allocated is None else set(allocated)

    def __missing__(self, key: Any) -> Any:
        raise UndefinedError(f"{self._spell(key)} is read before it has a value")

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._allocated is not None and key not in self._allocated:
            raise UndefinedError(f"{self._spell(key)} was not allocated")
        super().__setitem__(key, value)

    def _spell(self, key: Any) -> str:
        return f"{self._name}{list(key) if isinstance(key, tuple) else [key]}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A printed line of an algorithm.

    Attributes:
        label: ``line-N`` of the source, or ``line-N.2`` for the second thing that the line says.
        says: The line.
        depth: Indentation of the line.
        code: The line in Python, mended where it needs it.
        printed: The line as printed where that is another; "pass" for what is not printed at all.
        plant: A fault in its place, for a line that is correct.
        why: What is wrong with it.
        fix: The mended line in the paper's symbols.
    """

    label: str
    says: str
    depth: int
    code: str
    printed: str = ""
    plant: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Program:
    """A server's and a client's algorithm together: the client's procedures first, then the server's rounds.

    Attributes:
        lines: Those whose findings are this program's; the others are context.
        client: The client's algorithm.
        server: The server's algorithm.
        P: Number of directions a step.
        scalar: The function by which its recursion measures a client along a direction.
    """

    lines: tuple[Line, ...]
    client: tuple[Line, ...]
    server: tuple[Line, ...]
    P: int = 1
    scalar: Scalar = _difference

    def text(self, changes: Mapping[str, str] = {}) -> str:
        """Its Python code, with other code at the lines of these labels."""
        return "\n".join(
            textwrap.indent(changes.get(line.label, line.code), "    " * line.depth)
            for line in self.client + self.server
        )


def play(program: Program, changes: Mapping[str, str] = {}) -> dict[str, Any]:
    """Run the program with other code at some lines; returns its names with their values.

    Raises:
        Exception: Whatever a misprinted line does.
    """
    x, local = Symbols("x"), Symbols("model of client ")
    x[0] = START
    world: dict[str, Any] = {
        "x": x, "local": local, "C": Symbols("C"), "Symbols": Symbols, "product": product,
        "M": M, "m": m, "K": K, "R": R, "P": program.P, "eta": ETA, "mu": MU, "start": START,
        "normal": _normal, "seed": _seed, "xi": _sample, "f": _loss, "gradient": _gradient,
        "choose": lambda r, size: SAMPLED[r][:size],
        "clients": range(1, M + 1), "steps": range(1, K + 1), "directions": range(1, program.P + 1),
    }  # fmt: skip
    exec(compile(program.text(changes), "algorithm", "exec"), world)
    return world


def outcome(program: Program, changes: Mapping[str, str] = {}) -> str:
    """What breaks when the program is run with other code at some lines; "" if it works."""
    try:
        x = play(program, changes)["x"]
    except Exception as error:  # whatever a misprinted line does is the finding
        return f"{type(error).__name__}: {error}"
    models = _recursion(program.P, program.scalar)
    for r, clients in enumerate(SAMPLED):
        for i in clients:
            if (i, r, 1) not in x or (x[i, r, 1] != models[r]).any():
                return f"client {i} does not hold x_{r} in round {r}"
    for r, model in enumerate(models):
        if r not in x or (x[r] != model).any():
            return f"the server's x_{r} is not the recursion's"
    return ""


_WORKS: Final = f"every model equals the recursion's ({M} clients, {m} a round, K = {K}, {R} rounds, exact fractions)"


def _runs(program: Program, line: Line) -> Evidence:
    broken, faulty = outcome(program), outcome(program, {line.label: line.plant})
    works = f"breaks: {broken}" if broken else _WORKS
    caught = faulty or "nothing breaks"
    plant = "; ".join(line.plant.split("\n"))
    return Evidence("execution", not broken and bool(faulty), f"{works}; with “{plant}” instead: {caught}")


def _breaks(program: Program, line: Line) -> Evidence:
    broken = outcome(program, {line.label: line.printed})
    return Evidence("execution", bool(broken), f"run to the letter: {broken or 'nothing breaks'}")


def _mended(program: Program) -> Evidence:
    broken = outcome(program)
    return Evidence("execution", not broken, f"mended: {broken or _WORKS}")


def entry(program: Program, line: Line, *, kind: Kind = "algorithm line", at: int | None = None) -> Entry:
    """The entry of a line, checked by its program: *typo* if it has a printed version, else *correct*.

    Args:
        program: The program that the line is part of.
        line: The line.
        kind: What it is in the paper.
        at: Line of the source, if the label does not name it.
    """
    number = int(line.label.removeprefix("line-").split(".")[0]) if at is None else at
    checks = (
        (partial(_breaks, program, line), partial(_mended, program))
        if line.printed
        else (partial(_runs, program, line),)
    )
    return Entry(
        label=line.label,
        line=number,
        kind=kind,
        says=line.says,
        finding="typo" if line.printed else "correct",
        checks=checks,
        why=line.why,
        fix=line.fix,
    )


def _whole(label: str, line: int, says: str, program: Program, labels: tuple[str, ...] = ()) -> Entry:
    """The entry of an algorithm as a whole: all its lines as printed at once."""
    printed = {each.label: each.printed for each in program.lines if each.printed}

    def to_the_letter() -> Evidence:
        broken = outcome(program, printed)
        return Evidence("execution", bool(broken), f"all lines to the letter: {broken or 'nothing breaks'}")

    return Entry(
        label=label,
        line=line,
        kind="algorithm line",
        says=says,
        finding="typo",
        checks=(to_the_letter, partial(_mended, program)),
        why=f"{len(printed)} slips in it stop a literal run; mended, it does what it should",
        fix="; ".join(each.fix for each in program.lines if each.printed),
        labels=labels,
    )


# Algorithm 1: the server, one direction a step.
_SERVER: Final = (
    Line(
        label="line-298",
        says="Initialize {g_0^k}, η, K, R",
        depth=0,
        code='t, g = Symbols("t"), Symbols("g")\nfor i in clients: t[i] = 0',
        printed='t, g = Symbols("t"), Symbols("g")\nfor k in steps: g[0, k] = 0',
        why="g_0^k needs no start value, round 0 computes it before it is read; t_i needs one, line 306 reads it in "
        "round 0",
        fix="Initialize t_i = 0 for all i, η, K, R",
    ),
    Line(
        label="line-299",
        says="Allocate: states {t_i}_{i=1}^N, seeds {s_r^k}, scalars {g_r^k}, r = 0..R−1, k = 1..K",
        depth=0,
        code='t = Symbols("t", t, range(1, M + 1))\nseeds = Symbols("s", {}, product(range(R), steps))\n'
        'scalars = Symbols("g", {}, product(range(R), steps))',
        printed='t = Symbols("t", t, range(1, N + 1))\nseeds = Symbols("s", {}, product(range(R), steps))\n'
        'scalars = Symbols("g", {}, product(range(R), steps))',
        why="N is nowhere defined: there are M clients",
        fix="state set {t_i}_{i=1}^M",
    ),
    Line(
        label="line-303",
        says="for r = 0, 1, …, R−1",
        depth=0,
        code="for r in range(0, R):",
        plant="for r in range(0, R - 1):",
    ),
    Line(
        label="line-304",
        says="Sample a client set C_r of m clients, and K seeds s_r^k",
        depth=1,
        code="C[r] = choose(r, m)\ns = {(r, k): seed(r, k) for k in steps}",
        plant="C[r] = choose(r, m)\ns = {(r, k): seed(r, k) for k in steps[1:]}",
    ),
    Line(
        label="line-305",
        says="for each client i ∈ C_r in parallel",
        depth=1,
        code="for i in C[r]:",
        plant="for i in C[r][1:]:",
    ),
    Line(
        label="line-306",
        says="ClientRebuildModel({g_{r'}^k}, {s_{r'}^k}), r' = t_i..r−1",
        depth=2,
        code="missed = list(product(range(t[i], r), steps))\n"
        "rebuild(i, {key: scalars[key] for key in missed}, {key: seeds[key] for key in missed})",
        plant="missed = list(product(range(t[i] + 1, r), steps))\n"
        "rebuild(i, {key: scalars[key] for key in missed}, {key: seeds[key] for key in missed})",
    ),
    Line(
        label="line-307",
        says="{g_{i,r}^k} = ClientZOLocalUpdate({s_r^k}, r)",
        depth=2,
        code="for k, value in local_update(i, s, r).items(): g[i, r, k] = value",
        plant="for k, value in local_update(i, s, r - 1).items(): g[i, r, k] = value",
    ),
    Line(
        label="line-310",
        says="g_r^k = (1/|C_r|) Σ_{i ∈ C_r} g_{i,r}^k, k = 1..K",
        depth=1,
        code="for k in steps: g[r, k] = sum(g[i, r, k] for i in C[r]) / len(C[r])",
        plant="for k in steps: g[r, k] = sum(g[i, r, k] for i in C[r]) / M",
    ),
    Line(
        label="line-311",
        says="Store {g_r^k}, {s_r^k}; t_i = r",
        depth=1,
        code="for k in steps: scalars[r, k], seeds[r, k] = g[r, k], s[r, k]\nfor i in C[r]: t[i] = r",
        plant="for k in steps: scalars[r, k], seeds[r, k] = g[r, k], s[r, k]\nfor i in C[r]: t[i] = r + 1",
    ),
    Line(
        label="line-312",
        says="x_{r+1} = x_r − η Σ_k g_r^k z_r^k (optional)",
        depth=1,
        code="x[r + 1] = x[r] - eta * sum(g[r, k] * normal(s[r, k]) for k in steps)",
        plant="x[r + 1] = x[r] + eta * sum(g[r, k] * normal(s[r, k]) for k in steps)",
    ),
)


def _initialize(label: str) -> Line:
    return Line(
        label=label,
        says="Initialize: maintain a local model x_{i,0}^1",
        depth=0,
        code="for i in clients: local[i] = x[i, 0, 1] = start",
        printed="for i in clients: local[i] = x[i, 0, 1] = i * start",
        why="it does not say that all start from one model: with starts of their own no client ever holds the server's",
        fix="x_{i,0}^1 = x_0, the same for all i",
    )


def _rebuild(numbers: Mapping[str, int]) -> tuple[Line, ...]:
    """ClientRebuildModel of Algorithms 2 and 5, which are the same: what -> its line."""
    name = {what: f"line-{number}" for what, number in numbers.items()}
    return (
        Line(
            label=name["procedure"],
            says="procedure ClientRebuildModel({g_{r'}^k}, {s_{r'}^k})",
            depth=0,
            code='def rebuild(i, g, s):\n    z = Symbols("z")',
            plant='def rebuild(i, s, g):\n    z = Symbols("z")',
        ),
        Line(
            label=name["rounds"],
            says="for r' = t_i, …, r−1",
            depth=1,
            code="for q in range(t[i], r):",
            plant="for q in range(t[i], r - 1):",
        ),
        Line(
            label=name["steps"],
            says="for k = 1, …, K",
            depth=2,
            code="for k in range(1, K + 1):",
            plant="for k in range(0, K):",
        ),
        Line(
            label=name["generate"],
            says="Generate z_{r'}^k by random seed s_{r'}^k",
            depth=3,
            code="z[q, k] = normal(s[q, k])",
            plant="z[q, k] = normal(s[q, 1])",
        ),
        *_update(name["update"], "g_{r'}^k z_{r'}^k", "eta * g[q, k] * z[q, k]", depth=3),
    )


def _update(label: str, step: str, code: str, depth: int) -> Iterator[Line]:
    """The update of a model that is rebuilt: its comment's x^0, and the link to the next round that is not printed."""
    update = f"local[i] = x[i, q, k + 1] = x[i, q, k] - {code}"
    yield Line(
        label=label,
        says=f"x_{{i,r'}}^{{k+1}} = x_{{i,r'}}^k − η {step}; comment: x_{{i,t_i}}^0 is the local model",
        depth=depth,
        code=f"if (q, k) == (t[i], 1): x[i, q, 1] = local[i]\n{update}",
        printed=f"if (q, k) == (t[i], 1): x[i, q, 1] = x[i, q, 0]\n{update}",
        why="local steps count from 1: the loop reads x_{i,t_i}^1, and x_{i,t_i}^0 is nowhere else",
        fix="x_{i,t_i}^1 is the local model",
    )
    yield Line(
        label=f"{label}.2",
        says="from one missed round to the next: nothing is printed",
        depth=depth,
        code="if k == K: x[i, q + 1, 1] = x[i, q, K + 1]",
        printed="pass",
        why="the next round starts from x_{i,r'+1}^1, which no line sets",
        fix="after the loop over k: x_{i,r'+1}^1 = x_{i,r'}^{K+1}",
    )


def _local_update(numbers: Mapping[str, int], *measure: Line) -> tuple[Line, ...]:
    """The local update of Algorithms 2 and 5, which differ in how a scalar is measured: what -> its line."""
    name = {what: f"line-{number}" for what, number in numbers.items()}
    return (
        Line(
            label=name["procedure"],
            says="procedure of the local update, given {s_r^k} and r",
            depth=0,
            code='def local_update(i, s, r):\n    z, g = Symbols("z"), Symbols("g")',
            plant='def local_update(i, r, s):\n    z, g = Symbols("z"), Symbols("g")',
        ),
        Line(
            label=name["steps"],
            says="for k = 1, …, K",
            depth=1,
            code="for k in range(1, K + 1):",
            plant="for k in range(1, K):",
        ),
        Line(
            label=name["generate"],
            says="Generate z_r^k by random seed s_r^k",
            depth=2,
            code="z[r, k] = normal(s[r, k])",
            plant="z[r, k] = normal(s[r, k] + i)",
        ),
        *measure,
        Line(
            label=name["update"],
            says="x_{i,r}^{k+1} = x_{i,r}^k − η g_{i,r}^k z_r^k",
            depth=2,
            code="local[i] = x[i, r, k + 1] = x[i, r, k] - eta * g[i, r, k] * z[r, k]",
            plant="local[i] = x[i, r, k + 1] = x[i, r, k] + eta * g[i, r, k] * z[r, k]",
        ),
        _revert(name["revert"]),
        Line(
            label=name["return"],
            says="return {g_{i,r}^k}",
            depth=1,
            code="return {k: g[i, r, k] for k in steps}",
            plant="return {k: g[i, r, K] for k in steps}",
        ),
    )


def _revert(label: str) -> Line:
    return Line(
        label=label,
        says="revert the local model back to x_{i,r}^1",
        depth=1,
        code="local[i] = x[i, r, 1]",
        plant="pass",
    )


# Algorithm 2: its client.
_CLIENT: Final = (
    _initialize("line-321"),
    *_rebuild({"procedure": 322, "rounds": 323, "steps": 324, "generate": 325, "update": 326}),
    *_local_update(
        {"procedure": 332, "steps": 333, "generate": 334, "update": 336, "revert": 338, "return": 339},
        Line(
            label="line-335",
            says="g_{i,r}^k = (f_i(x_{i,r}^k + μ z_r^k; ξ) − f_i(x_{i,r}^k; ξ))/μ",
            depth=2,
            code="g[i, r, k] = (f(i, x[i, r, k] + mu * z[r, k], xi(i, r, k)) - f(i, x[i, r, k], xi(i, r, k))) / mu",
            plant="g[i, r, k] = (f(i, x[i, r, k] + mu * z[r, k], xi(i, r, k)) - f(i, x[i, r, 1], xi(i, r, k))) / mu",
        ),
    ),
)

# Algorithm 3: the server, P directions a step.
_SERVER_P: Final = (
    Line(
        label="line-752",
        says="Initialize {{g_0^k}_{p=1}^P}_{k=1}^K, η, K, R, P",
        depth=0,
        code='t, g = Symbols("t"), Symbols("g")\nfor i in clients: t[i] = 0',
        printed='t, g = Symbols("t"), Symbols("g")\nfor k in steps: g[0, k] = 0',
        why="g_0 (whose index p is missing) needs no start value; t_i needs one, line 761 reads it in round 0",
        fix="Initialize t_i = 0 for all i, η, K, R, P",
    ),
    Line(
        label="line-753",
        says="Allocate: states {t_i}_{i=1}^N, seeds {s_{r,p}^k}",
        depth=0,
        code='t = Symbols("t", t, range(1, M + 1))\nseeds = Symbols("s", {}, product(range(R), steps, directions))',
        printed='t = Symbols("t", t, range(1, N + 1))\nseeds = Symbols("s", {}, product(range(R), steps, directions))',
        why="N is nowhere defined: there are M clients",
        fix="state set {t_i}_{i=1}^M",
    ),
    Line(
        label="line-753.2",
        says="Allocate: scalars {{{g_r^k}_{p=1}^P}_{k=1}^K}_{r=0}^{R−1}",
        depth=0,
        code='scalars = Symbols("g", {}, product(range(R), steps, directions))',
        printed='scalars = Symbols("g", {}, product(range(R), steps))',
        why="the scalars lack their index p, so there is no room for g_{r,p}^k",
        fix="gradient set {{{g_{r,p}^k}_{p=1}^P}_{k=1}^K}_{r=0}^{R−1}",
    ),
    Line(
        label="line-758",
        says="for r = 0, 1, …, R−1",
        depth=0,
        code="for r in range(0, R):",
        plant="for r in range(0, R - 1):",
    ),
    Line(
        label="line-759",
        says="Sample a client set C_r of m clients, and P·K seeds s_{r,p}^k",
        depth=1,
        code="C[r] = choose(r, m)\ns = {(r, k, p): seed(r, k, p) for k, p in product(steps, directions)}",
        plant="C[r] = choose(r, m)\ns = {(r, k, 1): seed(r, k, 1) for k in steps}",
    ),
    Line(
        label="line-760",
        says="for each client i ∈ C_r in parallel",
        depth=1,
        code="for i in C[r]:",
        plant="for i in C[r][1:]:",
    ),
    Line(
        label="line-761",
        says="ClientRebuildModel({g_{r',p}^k}, {s_{r',p}^k}), r' = t_i..r−1",
        depth=2,
        code="missed = list(product(range(t[i], r), steps, directions))\n"
        "rebuild(i, {key: scalars[key] for key in missed}, {key: seeds[key] for key in missed})",
        plant="missed = list(product(range(t[i] + 1, r), steps, directions))\n"
        "rebuild(i, {key: scalars[key] for key in missed}, {key: seeds[key] for key in missed})",
    ),
    Line(
        label="line-762",
        says="{g_{i,r,p}^k} = ClientZOLocalUpdate({s_{r,p}^k}, r)",
        depth=2,
        code="for (k, p), value in local_update(i, s, r).items(): g[i, r, k, p] = value",
        plant="for (k, p), value in local_update(i, s, r - 1).items(): g[i, r, k, p] = value",
    ),
    Line(
        label="line-765",
        says="g_{r,p}^k = (1/|C_r|) Σ_{i ∈ C_r} g_{i,r,p}^k",
        depth=1,
        code="for k, p in product(steps, directions): g[r, k, p] = sum(g[i, r, k, p] for i in C[r]) / len(C[r])",
        plant="for k, p in product(steps, directions): g[r, k, p] = sum(g[i, r, k, p] for i in C[r]) / M",
    ),
    Line(
        label="line-766",
        says="Store {g_{r,p}^k}, {s_{r,p}^k}; t_i = r",
        depth=1,
        code="for k, p in product(steps, directions): scalars[r, k, p], seeds[r, k, p] = g[r, k, p], s[r, k, p]\n"
        "for i in C[r]: t[i] = r",
        plant="for k, p in product(steps, directions): scalars[r, k, p], seeds[r, k, p] = g[r, k, p], s[r, k, p]\n"
        "for i in C[r]: t[i] = r + 1",
    ),
    Line(
        label="line-767",
        says="x_{r+1} = x_r − (η/P) Σ_k Σ_p · g_{r,p}^k · z_{r,p}^k (optional)",
        depth=1,
        code="pairs = list(product(steps, directions))\n"
        "x[r + 1] = x[r] - eta / P * sum(g[r, k, p] * normal(s[r, k, p]) for k, p in pairs)",
        printed="pairs = list(product(steps, directions))\n"
        "x[r + 1] = x[r] - eta / P * sum((* g[r, k, p]) * normal(s[r, k, p]) for k, p in pairs)",
        why="a product sign without a left factor after the sum",
        fix="x_{r+1} = x_r − (η/P) Σ_k Σ_p g_{r,p}^k z_{r,p}^k",
    ),
)

# Algorithm 4: its client.
_CLIENT_P: Final = (
    _initialize("line-776"),
    Line(
        label="line-777",
        says="procedure ClientRebuildModel({g_{r',p}^k}, {{{s_{r'}^k}_{p=1}^P}_{k=1}^K}_{r'=t_i}^{r−1})",
        depth=0,
        code='def rebuild(i, g, s):\n    z = Symbols("z")',
        printed="def rebuild(i, g, s):\n"
        '    z, s = Symbols("z"), Symbols("s", {(q, k): value for (q, k, p), value in s.items()})',
        why="the seeds lack their index p, which line 781 reads",
        fix="{{{s_{r',p}^k}_{p=1}^P}_{k=1}^K}_{r'=t_i}^{r−1}",
    ),
    Line(
        label="line-778",
        says="for r' = t_i, …, r−1",
        depth=1,
        code="for q in range(t[i], r):",
        plant="for q in range(t[i], r - 1):",
    ),
    Line(
        label="line-779",
        says="for k = 1, …, K",
        depth=2,
        code="for k in range(1, K + 1):",
        plant="for k in range(0, K):",
    ),
    Line(
        label="line-780",
        says="for p = 1, …, P",
        depth=3,
        code="for p in range(1, P + 1):",
        plant="for p in range(1, P):",
    ),
    Line(
        label="line-781",
        says="Generate z_{r',p}^k by random seed s_{r',p}^k",
        depth=4,
        code="z[q, k, p] = normal(s[q, k, p])",
        plant="z[q, k, p] = normal(s[q, k, 1])",
    ),
    *_update(
        "line-783",
        "(1/P) Σ_p g_{r',p}^k z_{r',p}^k",
        "eta / P * sum(g[q, k, p] * z[q, k, p] for p in directions)",
        depth=3,
    ),
    Line(
        label="line-789",
        says="procedure ClientZOLocalUpdate({s_{r,p}^k}, r)",
        depth=0,
        code='def local_update(i, s, r):\n    z, g = Symbols("z"), Symbols("g")',
        plant='def local_update(i, r, s):\n    z, g = Symbols("z"), Symbols("g")',
    ),
    Line(
        label="line-790",
        says="for k = 1, …, K",
        depth=1,
        code="for k in range(1, K + 1):",
        plant="for k in range(1, K):",
    ),
    Line(
        label="line-791",
        says="Δ = 0",
        depth=2,
        code="delta = 0 * start",
        plant="delta = start",
    ),
    Line(
        label="line-792",
        says="for p = 1, …, P",
        depth=2,
        code="for p in range(1, P + 1):",
        plant="for p in range(1, P):",
    ),
    Line(
        label="line-793",
        says="Generate z_{r,p}^k by random seed s_{r,p}^k",
        depth=3,
        code="z[r, k, p] = normal(s[r, k, p])",
        plant="z[r, k, p] = normal(s[r, k, p] + i)",
    ),
    Line(
        label="line-794",
        says="g_{i,r,p}^k = (f_i(x_{i,r}^k + μ z_{r,p}^k; ξ) − f_i(x_{i,r}^k; ξ))/μ",
        depth=3,
        code="g[i, r, k, p] = (f(i, x[i, r, k] + mu * z[r, k, p], xi(i, r, k)) - f(i, x[i, r, k], xi(i, r, k))) / mu",
        plant="g[i, r, k, p] = (f(i, x[i, r, k] + mu * z[r, k, p], xi(i, r, k)) - f(i, x[i, r, 1], xi(i, r, k))) / mu",
    ),
    Line(
        label="line-795",
        says="Δ = Δ + g_{i,r,p}^k z_{r,p}^k",
        depth=3,
        code="delta = delta + g[i, r, k, p] * z[r, k, p]",
        plant="delta = g[i, r, k, p] * z[r, k, p]",
    ),
    Line(
        label="line-797",
        says="x_{i,r}^{k+1} = x_{i,r}^k − (η/P) Δ",
        depth=2,
        code="local[i] = x[i, r, k + 1] = x[i, r, k] - eta / P * delta",
        plant="local[i] = x[i, r, k + 1] = x[i, r, k] - eta * delta",
    ),
    _revert("line-799"),
    Line(
        label="line-800",
        says="return {{g_{i,r,p}^k}}",
        depth=1,
        code="return {(k, p): g[i, r, k, p] for k, p in product(steps, directions)}",
        plant="return {(k, p): g[i, r, k, 1] for k, p in product(steps, directions)}",
    ),
)

# Algorithm 5: the client that projects gradients; its server is Algorithm 1.
_CLIENT_PROJECTION: Final = (
    _initialize("line-820"),
    *_rebuild({"procedure": 821, "rounds": 822, "steps": 823, "generate": 824, "update": 825}),
    *_local_update(
        {"procedure": 830, "steps": 831, "generate": 832, "update": 835, "revert": 837, "return": 838},
        Line(
            label="line-833",
            says="Backward computation of ∇f_i(x_{i,r}^K)",
            depth=2,
            code="backward = gradient(i, x[i, r, k])",
            printed="backward = gradient(i, x[i, r, K])",
            why="in step k the client is at x_{i,r}^k; x_{i,r}^K is not there before step K",
            fix="∇f_i(x_{i,r}^k)",
        ),
        Line(
            label="line-834",
            says="g_{i,r}^k = ⟨∇f_i(x_{i,r}^K), z_r^k⟩",
            depth=2,
            code="g[i, r, k] = gradient(i, x[i, r, k]) @ z[r, k]",
            printed="g[i, r, k] = gradient(i, x[i, r, K]) @ z[r, k]",
            why="in step k the client is at x_{i,r}^k; x_{i,r}^K is not there before step K",
            fix="g_{i,r}^k = ⟨∇f_i(x_{i,r}^k), z_r^k⟩",
        ),
    ),
)

_SERVER_SIDE: Final = Program(_SERVER, _CLIENT, _SERVER)
_CLIENT_SIDE: Final = Program(_CLIENT, _CLIENT, _SERVER)
_SERVER_SIDE_P: Final = Program(_SERVER_P, _CLIENT_P, _SERVER_P, P=3)
_CLIENT_SIDE_P: Final = Program(_CLIENT_P, _CLIENT_P, _SERVER_P, P=3)
_PROJECTION: Final = Program(_CLIENT_PROJECTION, _CLIENT_PROJECTION, _SERVER, scalar=_projection)

PROGRAMS: Final = (_SERVER_SIDE, _CLIENT_SIDE, _SERVER_SIDE_P, _CLIENT_SIDE_P, _PROJECTION)

ENTRIES: Final = (
    *(entry(program, line) for program in PROGRAMS for line in program.lines),
    _whole("alg.cezo-fl", 293, "Algorithm 1: DeComFL, the server", _SERVER_SIDE, ("algorithm-1",)),
    _whole("alg.decomfl_client", 317, "Algorithm 2: DeComFL, the client", _CLIENT_SIDE, ("algorithm-1-2",)),
    _whole("alg.decomfl_server(P>1)", 748, "Algorithm 3: DeComFL with P directions, the server", _SERVER_SIDE_P),
    _whole("alg.decomfl_client(P>1)", 772, "Algorithm 4: DeComFL with P directions, the client", _CLIENT_SIDE_P),
    _whole("alg.decomfl_client_proj", 816, "Algorithm 5: DeComFL with projected gradients, the client", _PROJECTION),
)
