"""The five algorithms, line by line: transcribed to the letter, run in exact fractions, compared with their recursion.

Every printed line is a line of code with the paper's own indices. Symbols are tables that refuse to be read before
they were written, so that a wrong index is not repaired by the reader. A program *works* if every sampled client
rebuilds the server's model, and the server's model follows

    x_{r+1} = x_r − (η/P) Σ_k Σ_p (1/m) Σ_{i ∈ C_r} g_{i,r,p}^k z_{r,p}^k

with local steps from x_r, all without any rounding. A line is *correct* if the program with it works (every other line
mended) and the program with a fault planted in its place does not; a *misprint* if the printed line breaks a program
that the mended one leaves working.
"""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from theory.findings.data import ALGORITHMS, LINES, RAW
from theory.findings.data import PROGRAMS as LISTED
from theory.findings.decorators import mends, refutes, supports
from theory.findings.finding import Evidence

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
    """s_{r,p}^k: another one for each."""
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
    return i * x - i


def _difference(i: int, x: Vector, z: Vector, xi: Fraction) -> Fraction:
    """The scalar g of client i along z by a forward difference."""
    return (_loss(i, x + MU * z, xi) - _loss(i, x, xi)) / MU


def _projection(i: int, x: Vector, z: Vector, xi: Fraction) -> Fraction:
    """The same by projection, ⟨∇f_i, z⟩."""
    del xi
    return cast(Fraction, _gradient(i, x) @ z)


class UndefinedError(Exception):
    """A symbol is read before it has a value, or written where nothing was allocated."""


class Symbols(dict[Any, Any]):
    """The values of an indexed symbol of the paper, to the letter: x[i, r, k] is x_{i,r}^k.

    It begins with ``values``, and has room for the indices that are ``allocated``, None for any.
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


@dataclass(frozen=True)
class AlgorithmLine:
    """A printed line of an algorithm."""

    label: str  # label of its entry; "" for a line that is no statement of the paper here
    depth: int  # indentation of the line
    code: str  # the line in Python, mended where it needs it
    printed: str = ""  # the line as printed where that is another; "pass" for what is not printed at all
    plant: str = ""  # A fault in its place, for a line that is correct


@dataclass(frozen=True)
class AlgorithmProgram:
    """A server's and a client's algorithm together: the client's procedures first, then the server's rounds."""

    client: tuple[AlgorithmLine, ...]  # the client's algorithm
    server: tuple[AlgorithmLine, ...]  # the server's algorithm
    P: int = 1  # number of directions a step
    scalar: Scalar = _difference  # the function by which its recursion measures a client along a direction

    def text(self, changes: Mapping[str, str] = {}) -> str:
        """Its Python code, with other code at the lines of these labels."""
        return "\n".join(
            textwrap.indent(changes.get(line.label, line.code), "    " * line.depth)
            for line in self.client + self.server
        )


def _listing(name: str) -> tuple[AlgorithmLine, ...]:
    """The lines of a listing of the data; those with an entry are read from it. Their code is written at its depth."""
    lines = []
    for item in LISTED["listings"][name]:
        raw = LINES[item] if isinstance(item, str) else item
        code, printed, plant = (textwrap.dedent(raw.get(key, "")) for key in ("code", "printed", "plant"))
        depth = (len(raw["code"]) - len(raw["code"].lstrip(" "))) // 4
        lines.append(AlgorithmLine(raw.get("label", ""), depth, code, printed, plant))
    return tuple(lines)


_SCALARS: Final[Mapping[str, Scalar]] = {"difference": _difference, "projection": _projection}
PROGRAMS: Final[Mapping[str, AlgorithmProgram]] = {
    name: AlgorithmProgram(
        _listing(each["client"]),
        _listing(each["server"]),
        each.get("P", 1),
        _SCALARS[each.get("scalar", "difference")],
    )
    for name, each in LISTED["programs"].items()
}
"""The algorithms of the paper, and the recursions of its text, by name."""


def play(program: AlgorithmProgram, changes: Mapping[str, str] = {}) -> dict[str, Any]:
    """Run the program with other code at some lines, which may raise anything; returns its names with their values."""
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


def outcome(program: AlgorithmProgram, changes: Mapping[str, str] = {}) -> str:
    """What breaks when the program is run with other code at some lines; "" if it works."""
    try:
        x = play(program, changes)["x"]
    except Exception as error:  # whatever a misprinted line does is the finding
        return f"{type(error).__name__}: {error}"
    # x_0 .. x_R, by local steps from x_r and the mean of the scalars; no tables, no seeds sent, no rebuilding.
    models = [START]
    for r, clients in enumerate(SAMPLED):
        walks = dict.fromkeys(clients, models[r])
        total = 0 * START
        for k in range(1, K + 1):
            steps = {}
            for i in clients:
                Z = [_normal(_seed(r, k, p)) for p in range(1, program.P + 1)]
                steps[i] = sum((program.scalar(i, walks[i], z, _sample(i, r, k)) * z for z in Z), start=0 * START)
                walks[i] = walks[i] - ETA / program.P * steps[i]
            total = total + sum(steps.values(), start=0 * START) / m
        models.append(models[r] - ETA / program.P * total)
    for r, clients in enumerate(SAMPLED):
        for i in clients:
            if (i, r, 1) not in x or (x[i, r, 1] != models[r]).any():
                return f"client {i} does not hold x_{r} in round {r}"
    for r, model in enumerate(models):
        if r not in x or (x[r] != model).any():
            return f"the server's x_{r} is not the recursion's"
    return ""


_WORKS: Final = f"every model equals the recursion's ({M} clients, {m} a round, K = {K}, {R} rounds, exact fractions)"


def _of(label: str) -> tuple[AlgorithmProgram, AlgorithmLine]:
    """The program whose own listing has the line of that label first, and the line."""
    program = PROGRAMS[ALGORITHMS[label]]
    return program, next(line for line in program.client + program.server if line.label == label)


def runs(label: str) -> Evidence:
    """The program with this line works, and with the line's planted fault it does not."""
    program, line = _of(label)
    broken, faulty = outcome(program), outcome(program, {line.label: line.plant})
    works = f"breaks: {broken}" if broken else _WORKS
    caught = faulty or "nothing breaks"
    plant = "; ".join(line.plant.split("\n"))
    return Evidence("execution", not broken and bool(faulty), f"{works}; with “{plant}” instead: {caught}")


def to_the_letter(label: str) -> Evidence:
    """The program with this line as it is printed does not work."""
    program, line = _of(label)
    broken = outcome(program, {line.label: line.printed})
    return Evidence("execution", bool(broken), f"run to the letter: {broken or 'nothing breaks'}")


def all_printed(name: str) -> Evidence:
    """The program with every line as it is printed does not work."""
    listing = LISTED["listings"][name]
    program = PROGRAMS[name]
    broken = outcome(program, {each: LINES[each]["printed"] for each in listing if "printed" in LINES[each]})
    return Evidence("execution", bool(broken), f"all lines to the letter: {broken or 'nothing breaks'}")


def mended(name: str) -> Evidence:
    """The program of that name with every line mended works."""
    broken = outcome(PROGRAMS[name])
    return Evidence("execution", not broken, f"mended: {broken or _WORKS}")


for _entry in RAW:
    if (_algorithm := _entry["place"]) in PROGRAMS:  # the place of a whole algorithm is its name alone
        refutes(_entry["label"], cause="algorithm-slips", witness=_algorithm == "Algorithm 1")(all_printed, _algorithm)
        mends(_entry["label"])(mended, _algorithm)

for _label, _line in LINES.items():  # a printed line that differs from its code refutes itself
    if "printed" in _line:
        refutes(_label, cause=_line["cause"])(to_the_letter, _label)
        mends(_label)(mended, ALGORITHMS[_label])
    else:
        supports(_label)(runs, _label)
