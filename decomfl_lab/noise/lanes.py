"""Explicit vectors for numba: LLVM's own vector values, written with Python's operators.

Numba turns loops into vector code when LLVM's loop vectorizer sees a way, and the way it sees is half as wide
as it could be where 64-bit products and 32-bit words meet. An intrinsic made of ``Lanes`` leaves no choice: a
value *is* 32 lanes, which the back end cuts into 4 AVX2, 2 AVX-512 or 8 NEON registers. Every operator is one
LLVM instruction without fast-math flags, so nothing is contracted to a fused multiply-add or reordered. The kernels of
``numba_cpu`` and ``engines.kernels`` are made of them.
"""

# mypy: disable-error-code="no-untyped-call,no-any-return"
from typing import Any, Self

import numpy as np
from llvmlite import ir

I32, I64 = ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_ALIGN = {I32: 4, F32: 4, I64: 8, F64: 8}  # of one element: vectors in memory need not be aligned


def align_spills(function: ir.Function) -> None:
    """Let the function keep its spilled vectors at aligned places of the stack.

    Without a frame pointer LLVM cannot realign the stack, and where it happens to lie badly every second spill
    crosses a cache line: the same code then takes up to two and a half times as long.
    """
    for attribute in ('"frame-pointer"="all"', '"stackrealign"'):
        set.add(function.attributes, attribute)  # llvmlite's own ``add`` knows enum attributes only


class Lanes:
    """A vector value of the function that ``builder`` is writing; numbers and scalars are spread over its lanes."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder = builder
        self.value = value

    @property
    def element(self) -> ir.Type:
        """Type of one lane."""
        return self.value.type.element

    @property
    def count(self) -> int:
        """Number of lanes."""
        return self.value.type.count

    @classmethod
    def counting(cls, builder: ir.IRBuilder, element: ir.Type, count: int) -> Self:
        """0, 1, 2, ..."""
        numbers = [ir.Constant(element, n) for n in range(count)]
        return cls(builder, ir.Constant(ir.VectorType(element, count), numbers))

    @classmethod
    def load(cls, builder: ir.IRBuilder, pointer: ir.Value, element: ir.Type, first: int, count: int) -> Self:
        """``count`` elements at ``pointer[first]``, which need not be aligned."""
        vector = _vector_at(builder, pointer, element, first, count)
        return cls(builder, builder.load(vector, align=_ALIGN[element]))

    def store(self, pointer: ir.Value, first: int) -> None:
        """Write the lanes to ``pointer[first]`` and on."""
        vector = _vector_at(self.builder, pointer, self.element, first, self.count)
        self.builder.store(self.value, vector, align=_ALIGN[self.element])

    def spread(self, scalar: ir.Value) -> Self:
        """``scalar`` in as many lanes as self has."""
        kind = ir.VectorType(scalar.type, self.count)
        nothing = ir.Constant(kind, ir.Undefined)
        # LLVM knows no broadcast: a lane is set, and a shuffle copies lane 0 to all.
        one = self.builder.insert_element(nothing, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.count), [0] * self.count)
        return self._like(self.builder.shuffle_vector(one, nothing, zeros))

    def _like(self, value: ir.Value) -> Self:
        return type(self)(self.builder, value)

    def _operand(self, other: Any) -> ir.Value:
        """Lanes, a scalar of the function or a number of Python as a vector like self."""
        if isinstance(other, Lanes):
            return other.value
        if isinstance(other, ir.Value):
            return self.spread(other).value
        if isinstance(self.element, ir.FloatType):
            other = float(np.float32(other))
        return ir.Constant(self.value.type, [ir.Constant(self.element, other)] * self.count)

    def _apply(self, integer: str, other: Any, floating: str | None = None) -> Self:
        """The builder's method of one of these names, by the lanes' type, on self and other."""
        name = floating if isinstance(self.element, ir.FloatType | ir.DoubleType) else integer
        assert name is not None, f"{integer} of floating-point lanes"
        return self._like(getattr(self.builder, name)(self.value, self._operand(other)))

    def __add__(self, other: Any) -> Self:
        return self._apply("add", other, "fadd")

    def __sub__(self, other: Any) -> Self:
        return self._apply("sub", other, "fsub")

    def __mul__(self, other: Any) -> Self:
        return self._apply("mul", other, "fmul")

    def __truediv__(self, other: Any) -> Self:
        return self._apply("sdiv", other, "fdiv")

    def __and__(self, other: Any) -> Self:
        return self._apply("and_", other)

    def __or__(self, other: Any) -> Self:
        return self._apply("or_", other)

    def __xor__(self, other: Any) -> Self:
        return self._apply("xor", other)

    def __lshift__(self, other: Any) -> Self:
        return self._apply("shl", other)

    def __rshift__(self, other: Any) -> Self:
        """Zeros come in from above."""
        return self._apply("lshr", other)

    def shift_signed(self, other: Any) -> Self:
        """Right shift; copies of the sign come in."""
        return self._apply("ashr", other)

    def halves(self) -> tuple[Self, Self]:
        """The lower and the upper half of the lanes."""
        nothing = ir.Constant(self.value.type, ir.Undefined)
        n = self.count // 2
        low, high = (ir.Constant(ir.VectorType(I32, n), list(range(a, a + n))) for a in (0, n))
        return (
            self._like(self.builder.shuffle_vector(self.value, nothing, low)),
            self._like(self.builder.shuffle_vector(self.value, nothing, high)),
        )

    def between(self, other: Self) -> tuple[Self, Self]:
        """The lower and the upper half of self₀, other₀, self₁, other₁, ..."""
        n = self.count
        # A shuffle numbers the lanes of both vectors through: other begins at n.
        mixed = [lane for i in range(n) for lane in (i, n + i)]
        kinds = (ir.Constant(ir.VectorType(I32, n), part) for part in (mixed[:n], mixed[n:]))
        low, high = (self._like(self.builder.shuffle_vector(self.value, other.value, kind)) for kind in kinds)
        return low, high

    def _cast(self, name: str, element: ir.Type) -> Self:
        return self._like(getattr(self.builder, name)(self.value, ir.VectorType(element, self.count)))

    def as_float(self) -> Self:
        """The same 32 bits as float32."""
        return self._cast("bitcast", F32)

    def as_int(self) -> Self:
        """The same 32 bits as an integer."""
        return self._cast("bitcast", I32)

    def low_word(self) -> Self:
        """The low 32 bits of 64."""
        return self._cast("trunc", I32)

    def to_float(self) -> Self:
        """The signed integer as float32."""
        return self._cast("sitofp", F32)

    def widen(self) -> Self:
        """Float32 as float64."""
        return self._cast("fpext", F64)

    def above(self, other: Any, then: Any, otherwise: Any) -> Self:
        """Lane by lane: ``then`` where self > other, else (and where one is NaN) ``otherwise``."""
        truth = self.builder.fcmp_ordered(">", self.value, self._operand(other))
        return self._like(self.builder.select(truth, self._operand(then), self._operand(otherwise)))

    def where_negative(self, then: Any, otherwise: Any) -> Any:
        """Lane by lane of integers: ``then`` where the top bit is set, else ``otherwise`` (scalars of one type)."""
        zero = ir.Constant(self.value.type, [ir.Constant(self.element, 0)] * self.count)
        truth = self.builder.icmp_signed("<", self.value, zero)
        return self._like(self.builder.select(truth, self.spread(then).value, self.spread(otherwise).value))

    def at_least(self, floor: ir.Value) -> Self:
        """Lane by lane: the scalar ``floor`` where self is below it; NaN stays."""
        wide = self.spread(floor).value
        return self._like(self.builder.select(self.builder.fcmp_ordered("<", self.value, wide), wide, self.value))

    def larger(self, other: Self) -> Self:
        """Lane by lane: the larger of two; NaN if one is."""
        # "Ordered" is false with NaN. So NaN of self stays by itself, and NaN of other is put in by hand.
        rises = self.builder.fcmp_ordered(">", other.value, self.value)
        top = self.builder.select(rises, other.value, self.value)
        broken = self.builder.fcmp_unordered("uno", other.value, other.value)
        return self._like(self.builder.select(broken, other.value, top))

    def square_root(self) -> Self:
        """Correctly rounded √."""
        return self._call("sqrt", self)

    def multiply_add(self, factor: Any, term: Self) -> Self:
        """This · factor + term, rounded once where the processor can: for losses, never for the stream."""
        return self._call("fmuladd", self, self._like(self._operand(factor)), term)

    def total(self) -> ir.Value:
        """The sum of all lanes of float32, halves added to halves."""
        rest = self
        while rest.count > 1:
            low, high = rest.halves()
            rest = low + high
        return self.builder.extract_element(rest.value, ir.Constant(I32, 0))

    def _call(self, name: str, *operands: Self) -> Self:
        kind = self.value.type
        name = f"llvm.{name}.v{self.count}f{32 if self.element == F32 else 64}"
        module = self.builder.module
        signature = ir.FunctionType(kind, [kind] * len(operands))
        function = module.globals.get(name) or ir.Function(module, signature, name)
        return self._like(self.builder.call(function, [operand.value for operand in operands]))


def _vector_at(builder: ir.IRBuilder, pointer: ir.Value, element: ir.Type, first: int, count: int) -> ir.Value:
    """``pointer[first]`` as the pointer to a vector of ``count`` elements."""
    place = builder.gep(pointer, [ir.Constant(I64, first)])
    return builder.bitcast(place, ir.VectorType(element, count).as_pointer())
