"""Updates as data: a lag of any length is one program of elementwise instructions, run tile by tile.

A local step multiplies, adds and draws noise on vectors of the model's shape: the parameters, the optimizer's
state, one scratch vector. All of it is elementwise, so a backend may run the *whole* program on one tile of
128 elements before it looks at the next: the model is read and written once, however many directions were
missed, and no direction is ever stored. Every instruction rounds once (or as often as its line below says), so
the bits do not depend on tiles, slices, threads or where the history was cut.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require, require_choice, require_int
from decomfl_lab.noise.spec import Distribution

SCRATCH = "scratch"
"""The register that no memory belongs to; a program must write it before it reads it."""
MOST_NAMES = 8
"""Tensors that a program may have on a GPU: each holds registers of every thread."""


class Op(IntEnum):
    """What an instruction does with register r (``to``), register s (``of``) and number a; fl rounds to nearest."""

    NOISE = 0  # r ← fl(r + fl(c_p · z_p)) for its directions p in turn
    FILL = 1  # r ← a
    COPY = 2  # r ← s
    SCALE = 3  # r ← fl(a · r)
    ADD = 4  # r ← fl(r + fl(a · s))
    OFFSET = 5  # r ← fl(r + a)
    MULTIPLY = 6  # r ← fl(r · s)
    DIVIDE_INTO = 7  # r ← fl(s / r)
    SQUARE_ROOT = 8  # r ← fl(√r)
    MAXIMUM = 9  # r ← max(r, s); s where one is NaN
    SIGN = 10  # r ← −1, 0 or 1; NaN stays
    SNAP = 11  # r ← fl(fl(r + C) − C), C = 1.5 · 2^(mantissa bits) · a: the nearest multiple of a, ties to even
    LIMIT = 12  # count the elements with not |r| ≤ a; r stays
    NARROW = 13  # r ← the nearest number of a 16-bit format, ties to even (float32 registers only)
    NARROW_RANDOMLY = 14
    """r ← one of the two neighbours in a 16-bit format, the nearer the likelier (float32 registers only)"""


class Format(StrEnum):
    """16-bit floating-point formats that a float32 register can be narrowed to."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


FORMATS = tuple(Format)
DISTRIBUTIONS = tuple(Distribution)


class Instruction(NamedTuple):
    """One row of a program. Fields that its ``op`` has no use for are 0."""

    op: Op  # what to do
    to: int  # register written
    of: int = 0  # register read
    value: float = 0.0  # the number a
    key: int = 0  # seed of the step (NOISE, NARROW_RANDOMLY)
    first: int = 0  # first direction p (NOISE), or which of the step's roundings this is (NARROW_RANDOMLY)
    begin: int = 0  # NOISE takes the coefficients begin..end-1 of the program
    end: int = 0  # see ``begin``
    kind: int = 0  # place in ``DISTRIBUTIONS`` (NOISE) or ``FORMATS`` (NARROW, NARROW_RANDOMLY)


def is_sphere(instruction: Instruction) -> bool:
    """Whether the instruction adds sphere directions, whose scale must be known first."""
    return instruction.op is Op.NOISE and DISTRIBUTIONS[instruction.kind] is Distribution.SPHERE


@dataclass(frozen=True)
class Code:
    """A program in arrays, n instructions and q coefficients, for compiled backends."""

    table: NDArray[np.int64]  # int64 (n, 7): op, to, of, first, begin, end, kind
    keys: NDArray[np.uint64]  # uint64 (n,)
    values: NDArray[np.float64]  # float64 (n,)
    coefficients: NDArray[np.float32]  # float32 (q,), of a program for a GPU a tensor there


class Program:
    """A list of instructions on named registers: ``names`` live in memory, ``SCRATCH`` does not.

    Each method appends one instruction, named after its ``Op``.
    """

    def __init__(self, names: Sequence[str]) -> None:
        require(len(set(names)) == len(names) > 0 and SCRATCH not in names, "names", "be distinct", tuple(names))
        self.names = tuple(names)
        self.registers = (*self.names, SCRATCH)
        self.instructions: list[Instruction] = []
        self._coefficients: list[Any] = []
        self.pairs = 0
        """Coefficients so far: directions that the program applies."""
        self._scratch_written = False

    def _register(self, name: str) -> int:
        return self.registers.index(require_choice("register", name, self.registers))

    def _append(self, op: Op, to: str, of: str | None = None, value: float = 0.0, **fields: int) -> None:
        instruction = Instruction(op, self._register(to), 0 if of is None else self._register(of), value, **fields)
        # All other instructions read the register that they write.
        read = {of} if op in (Op.FILL, Op.COPY) else {to, of}
        require(self._scratch_written or SCRATCH not in read, SCRATCH, "be written before it is read", op.name)
        self._scratch_written |= to == SCRATCH
        self.instructions.append(instruction)

    def noise(self, to: str, seed: int, coefficients: Any, distribution: Distribution, first: int = 0) -> None:
        """Directions first, first + 1, ... of ``seed`` with coefficients c_p, rounded to float32.

        They are numbers, an array or a tensor. A float32 tensor of a GPU stays there, and the program is for that GPU.
        """
        require_int("seed", seed, 0, 2**64 - 1)
        on_gpu = getattr(coefficients, "is_cuda", False)
        c: Any = coefficients if on_gpu else np.asarray(coefficients).astype(np.float32).reshape(-1)
        require_int("first_p", first, 0, 2**32 - max(len(c), 1))
        end = self.pairs + len(c)
        kind = DISTRIBUTIONS.index(distribution)
        self._append(Op.NOISE, to, key=seed, first=first, begin=self.pairs, end=end, kind=kind)
        self._coefficients.append(c)
        self.pairs = end

    def fill(self, to: str, value: float) -> None:
        """See ``Op.FILL``."""
        self._append(Op.FILL, to, value=value)

    def copy(self, to: str, of: str) -> None:
        """See ``Op.COPY``."""
        self._append(Op.COPY, to, of)

    def scale(self, to: str, value: float) -> None:
        """See ``Op.SCALE``."""
        self._append(Op.SCALE, to, value=value)

    def add(self, to: str, of: str, value: float = 1.0) -> None:
        """See ``Op.ADD``."""
        self._append(Op.ADD, to, of, value)

    def offset(self, to: str, value: float) -> None:
        """See ``Op.OFFSET``."""
        self._append(Op.OFFSET, to, value=value)

    def multiply(self, to: str, of: str) -> None:
        """See ``Op.MULTIPLY``."""
        self._append(Op.MULTIPLY, to, of)

    def divide_into(self, to: str, of: str) -> None:
        """See ``Op.DIVIDE_INTO``."""
        self._append(Op.DIVIDE_INTO, to, of)

    def square_root(self, to: str) -> None:
        """See ``Op.SQUARE_ROOT``."""
        self._append(Op.SQUARE_ROOT, to)

    def maximum(self, to: str, of: str) -> None:
        """See ``Op.MAXIMUM``."""
        self._append(Op.MAXIMUM, to, of)

    def sign(self, to: str) -> None:
        """See ``Op.SIGN``."""
        self._append(Op.SIGN, to)

    def snap(self, to: str, quantum: float) -> None:
        """See ``Op.SNAP``; |r| must stay below a quarter of 2^(mantissa bits) · quantum."""
        self._append(Op.SNAP, to, value=quantum)

    def limit(self, to: str, bound: float) -> None:
        """See ``Op.LIMIT``."""
        self._append(Op.LIMIT, to, value=bound)

    def narrow(self, to: str, kind: Format) -> None:
        """See ``Op.NARROW``."""
        self._append(Op.NARROW, to, kind=FORMATS.index(kind))

    def narrow_randomly(self, to: str, kind: Format, seed: int, place: int) -> None:
        """See ``Op.NARROW_RANDOMLY``; ``place`` tells the roundings of one seed apart."""
        require_int("seed", seed, 0, 2**64 - 1)
        require_int("place", place, 0, 2**32 - 1)
        self._append(Op.NARROW_RANDOMLY, to, key=seed, first=place, kind=FORMATS.index(kind))

    @classmethod
    def together(cls, programs: "Sequence[Program]") -> "Program | None":
        """All programs as one, register "x" of program n as "n x", that makes each direction once for all of them.

        None if there is nothing to share: the programs differ in more than numbers, or these are on a GPU, or they use
        ``SCRATCH`` (which the shared direction is kept in), or take Rademacher directions, 32 of which are made at once
        anyway.
        """
        # Programs are alike if all is equal but the numbers a and the coefficients.
        shapes = {tuple(line._replace(value=0.0) for line in program.instructions) for program in programs}
        alike = len(shapes) == 1 and len({program.names for program in programs}) == 1
        noisy = [line for line in programs[0].instructions if line.op is Op.NOISE]
        cheap = any(DISTRIBUTIONS[line.kind] is Distribution.RADEMACHER for line in noisy)
        on_gpu = any(not isinstance(c, np.ndarray) for program in programs for c in program._coefficients)
        if len(programs) == 1 or not alike or cheap or programs[0]._scratch_written or on_gpu:
            return None
        names, count = programs[0].names, len(programs[0].names)
        shared = cls([f"{n} {name}" for n in range(len(programs)) for name in names])
        coefficients = np.stack([program.coefficients for program in programs]).astype(np.float64)
        # The same instruction of all programs at a time, on their own registers. Noise becomes z in the scratch, made
        # once, and an addition of c z to each program's register: fl(r + fl(c z)), as before.
        for row in zip(*(program.instructions for program in programs), strict=True):
            lines = [line._replace(to=line.to + n * count, of=line.of + n * count) for n, line in enumerate(row)]
            if row[0].op is not Op.NOISE:
                shared.instructions.extend(lines)
                continue
            distribution = DISTRIBUTIONS[row[0].kind]
            for n in range(row[0].begin, row[0].end):
                shared.fill(SCRATCH, -0.0)  # -0 + z is z, to the bit
                shared.noise(SCRATCH, row[0].key, [1.0], distribution, row[0].first + n - row[0].begin)
                for line, c in zip(lines, coefficients[:, n], strict=True):
                    shared.add(shared.registers[line.to], SCRATCH, float(c))
        return shared

    @property
    def limited(self) -> bool:
        """Whether some instruction is a LIMIT, so that the program should be tried before it is run."""
        return any(line.op is Op.LIMIT for line in self.instructions)

    def singly(self) -> "Iterator[Program]":
        """Each instruction as a program of its own, with the scratch kept in memory as "was scratch"."""
        coefficients = self.coefficients
        for line in self.instructions:
            single = Program([*self.names, "was scratch"])
            single.pairs = line.end - line.begin
            single.instructions.append(line._replace(begin=0, end=single.pairs))
            single._coefficients.append(coefficients[line.begin : line.end])
            yield single

    @property
    def coefficients(self) -> Any:
        """All coefficients, float32 (pairs,): an array, or a tensor where a GPU has some of them."""
        device = next((c.device for c in self._coefficients if not isinstance(c, np.ndarray)), None)
        if device is None:
            return np.concatenate([np.empty(0, np.float32), *self._coefficients])
        import torch

        return torch.cat([torch.as_tensor(c).to(device, non_blocking=True) for c in self._coefficients])

    def encode(self) -> Code:
        """The program in arrays."""
        lines = self.instructions
        rows = [(line.op, line.to, line.of, line.first, line.begin, line.end, line.kind) for line in lines]
        return Code(
            np.array(rows, dtype=np.int64).reshape(-1, 7),
            np.array([line.key for line in lines], dtype=np.uint64),
            np.array([line.value for line in lines], dtype=np.float64),
            self.coefficients,
        )


def directions_by(
    run: Callable[..., int],
    key: int,
    direction: int,
    first: int,
    count: int,
    distribution: Distribution,
    scale: float,
) -> NDArray[np.float32]:
    """What ``reference.directions`` gives, by the ``run`` of a backend."""
    out = np.full(count, -0.0, dtype=np.float32)  # -0 + z is z, to the bit
    program = Program(["z"])
    program.noise("z", key, [1.0], distribution, direction)
    sphere = distribution is Distribution.SPHERE
    run(program.encode(), [out], first, np.full(1, scale if sphere else 1.0, dtype=np.float32))
    return out
