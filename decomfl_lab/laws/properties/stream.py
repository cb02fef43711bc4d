"""The laws of the noise stream: one contract for every backend, ours or yours; see ``law``."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from decomfl_lab import noise
from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.register import bits, law, same
from decomfl_lab.noise import SCRATCH, Distribution, Format, Program, known_answers, reference

_Vector = np.ndarray[Any, Any]
_LARGE = 10_000
"""Elements from which on programs take no sphere directions, whose norm is a sum over all of them."""
_places = st.one_of(st.integers(0, 1000), st.integers(2**37 - 300, 2**37 + 300))
"""Positions of a slice; 2^37 elements are 2^35 blocks, where the counter's second word counts."""


@st.composite
def programs(draw: DrawFn, *, wide: bool, d: int) -> Program:
    """Programs of up to 12 instructions on 1 to 3 registers in R^d; ``wide`` ones (float64) narrow nothing.

    There are no sphere directions where d is large: their norms are sums over all of R^d.
    """
    distributions = [kind for kind in Distribution if d < _LARGE or kind is not Distribution.SPHERE]
    names = ["x", "m", "v"][: draw(st.integers(1, 3))]
    program = Program(names)
    registers = st.sampled_from([*names, SCRATCH])
    number = st.sampled_from((0.9, -0.001, 1.0, 3.0, -2.5))
    program.fill(SCRATCH, draw(number))
    for _ in range(draw(st.integers(1, 12))):
        to, source, a = draw(registers), draw(registers), draw(number)
        match draw(st.integers(0, 14 if wide else 16)):
            case 0 | 1 | 2:
                c = draw(st.lists(st.floats(-2, 2, width=32), max_size=40))
                distribution = draw(st.sampled_from(distributions))
                program.noise(to, draw(draw_from.seeds), c, distribution, draw(st.integers(0, 70)))
            case 3:
                program.fill(to, a)
            case 4:
                program.copy(to, source)
            case 5 | 6:
                program.scale(to, a)
            case 7 | 8:
                program.add(to, source, a)
            case 9:
                program.offset(to, a)
            case 10:
                program.multiply(to, source)
            case 11:
                program.divide_into(to, source)
            case 12:
                program.multiply(to, to)
                program.square_root(to)
            case 13:
                program.maximum(to, source)
                program.sign(source)
            case 14:
                program.limit(to, abs(a))
                program.snap(to, 2.0 ** draw(st.integers(-20, -2)))
            case 15:
                program.narrow(to, draw(st.sampled_from(Format)))
            case _:
                place = draw(st.integers(0, 3))
                program.narrow_randomly(to, draw(st.sampled_from(Format)), draw(draw_from.seeds), place)
    return program


def _numbers(vector: _Vector) -> bytes:
    """Bits, with every NaN as the one NaN: which operand's NaN an addition passes on is not specified."""
    return bits(np.where(np.isnan(vector), vector.dtype.type(np.nan), vector))


def _memory(program: Program, size: int, dtype: type) -> dict[str, _Vector]:
    """Start values: of any sign and size, with zeros, float16-subnormal and huge numbers among them."""
    rng = np.random.default_rng(np.random.SeedSequence(size))
    scales = rng.choice([0.0, 1e-6, 1e-3, 1.0, 1e5], p=[0.1, 0.1, 0.2, 0.5, 0.1], size=size)
    return {name: (rng.standard_normal(size) * scales).astype(dtype) for name in program.names}


@law(draw_from.counters, draw_from.counters, parts=("direction",))
def streams_are_functions_of_their_counters(
    implementation: Implementation, a: tuple[int, int, Distribution], b: tuple[int, int, Distribution]
) -> None:
    """equal counters give equal directions, different counters different ones."""
    d = 200  # chance of a false alarm: 2**-200 for Rademacher, the least of the three
    first, again, other = (implementation.direction(s, p, d, distribution) for s, p, distribution in (a, a, b))
    same("direction made twice", bits(first), bits(again))
    same(f"directions of {a} and {b} are equal", bits(first) == bits(other), a == b)
    neighbour = implementation.direction(a[0], a[1] + 1, d, a[2])
    same(f"directions {a[1]} and {a[1] + 1} of one seed are equal", bits(first) == bits(neighbour), False)


@law(st.sampled_from(known_answers.KNOWN_ANSWERS), parts=("backends",), stream=True)
def known_answers_are_given(implementation: Implementation, answer: known_answers.KnownAnswer) -> None:
    """every backend gives the known answers of the specification."""
    for name, backend in implementation.backends().items():
        z = noise.direction(answer.key, answer.p, answer.d, distribution=answer.distribution, backend=backend)
        words = tuple(f"{word:08x}" for word in z[list(known_answers.POSITIONS)].view(np.uint32))
        same(f"{name}'s bits of {answer}", words, answer.bits)


@law(draw_from.counters, st.integers(1, 700), st.data(), parts=("backends", "direction"), stream=True)
def slices_and_backends_agree(
    implementation: Implementation, counter: tuple[int, int, Distribution], d: int, data: st.DataObject
) -> None:
    """a slice of a direction is that part of the whole, and all backends have the same bits."""
    seed, p, distribution = counter
    whole = implementation.direction(seed, p, d, distribution)
    first = data.draw(st.integers(0, d - 1))
    count = data.draw(st.integers(1, d - first))
    for name, backend in implementation.backends().items():
        part = noise.direction(seed, p, d, first=first, count=count, distribution=distribution, backend=backend)
        same(f"slice {first}+{count} by {name}", bits(part), bits(whole[first : first + count]))


@law(
    draw_from.seeds,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**40 - 400),
    st.sampled_from((Distribution.GAUSSIAN, Distribution.RADEMACHER)),
    parts=("backends",),
    stream=True,
)
def far_slices_agree(implementation: Implementation, seed: int, p: int, first: int, distribution: Distribution) -> None:
    """slices anywhere below 2^40 have the reference's bits in every backend."""
    wanted = reference.directions(seed, p, first, 300, distribution, 1.0)
    for name, backend in implementation.backends().items():
        z = noise.direction(seed, p, 2**40, first=first, count=300, distribution=distribution, backend=backend)
        same(f"elements {first}..{first + 299} by {name}", bits(z), bits(wanted))


@law(st.booleans(), _places, st.integers(1, 500), st.data(), parts=("backends",), stream=True)
def programs_agree_however_cut(
    implementation: Implementation, wide: bool, first: int, size: int, data: st.DataObject
) -> None:
    """any program has the reference's bits in every backend, wherever the model is cut and by any threads."""
    d = first + size
    program = data.draw(programs(wide=wide, d=d))
    start = _memory(program, size, np.float64 if wide else np.float32)
    expected = {name: vector.copy() for name, vector in start.items()}
    broken = noise.run(program, expected, d=d, first=first, backend="numpy")
    cut = data.draw(st.integers(0, size))
    workers = data.draw(st.integers(1, 3))
    for name, backend in implementation.backends().items():
        registers = {register: vector.copy() for register, vector in start.items()}
        broken_when_tried = noise.run(program, registers, d=d, first=first, backend=backend, store=False)
        same(f"limits broken when {name} only tries", broken_when_tried, broken)
        for register, vector in registers.items():
            same(f"{register} after {name} only tried", bits(vector), bits(start[register]))
        broken_in_parts = 0
        for a, b in ((0, cut), (cut, size)):
            part = {register: vector[a:b] for register, vector in registers.items()}
            broken_in_parts += noise.run(program, part, d=d, first=first + a, backend=backend, workers=workers)
        same(f"limits broken by {name}", broken_in_parts, broken)
        for register, vector in registers.items():
            same(f"{register} by {name}, cut at {cut}", _numbers(vector), _numbers(expected[register]))


@law(
    st.integers(1, 400).flatmap(lambda size: st.tuples(programs(wide=False, d=size), st.just(size))),
    parts=("backends",),
    stream=True,
)
def one_instruction_at_a_time_agrees(implementation: Implementation, drawn: tuple[Program, int]) -> None:
    """instructions run one program at a time have the bits of one program: any cut of the history."""
    program, size = drawn
    start = _memory(program, size, np.float32)
    for name, backend in implementation.backends().items():
        fused = {register: vector.copy() for register, vector in start.items()}
        noise.run(program, fused, d=size, backend=backend)
        single = {register: vector.copy() for register, vector in start.items()}
        single["was scratch"] = np.zeros(size, dtype=np.float32)
        for part in program.singly():
            noise.run(part, {name: single[name] for name in part.names}, d=size, backend=backend)
        for register, vector in fused.items():
            same(f"{register} by {name}, one instruction at a time", _numbers(single[register]), _numbers(vector))


@law(
    draw_from.seeds,
    st.integers(0, 100),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 900),
    parts=("backends",),
    stream=True,
)
def square_sums_agree(implementation: Implementation, seed: int, p: int, first_tile: int, tiles: int, d: int) -> None:
    """square sums of a gaussian direction agree to the bit: the sphere's norm."""
    wanted = reference.tile_square_sums(seed, p, first_tile, tiles, d)
    for name, backend in implementation.backends().items():
        same(f"by {name}", bits(backend.tile_square_sums(seed, p, first_tile, tiles, d)), bits(wanted))
