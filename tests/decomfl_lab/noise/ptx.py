"""PTX, the code that Triton makes for NVIDIA's GPUs, executed by numpy: ``Kernel(text).launch`` works on host memory.

Threads of several blocks ("lanes" here) go through the code together, and a register is a vector over them. Of all
lanes that do not wait, those at the earliest instruction go on, so that lanes that parted at a branch meet again.
Nothing may depend on that order, and that is looked for:

    every access   inside the buffer of its pointer, or the shared memory, and at a multiple of its size
    shared memory  no two threads reach for one byte, one of them writing, without a barrier between them
    global memory  no two threads write one byte, and no block reads what another writes
    barriers       all threads of the block (of the warp, for shuffles) come to the same one

An instruction that is not known here is refused (``UnknownError``). Registers and shared memory begin with rubbish.
Floats are numpy's: every operation is rounded on its own, and subnormal numbers are kept.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Step = Callable[[Array], None]

WARP = 32
LANES = 512
"""Threads that go through the code together, of as many blocks as have so many."""
SPAN = 40
"""Buffer n begins at about (n + 1) · 2^SPAN, so that what is outside of one is inside of none."""
MOST_STEPS = 10**5
RUBBISH = 0xA5


class PtxError(Exception):
    """The code does what it must not."""


class UnknownError(PtxError):
    """The code has an instruction that is not known here."""


# Operations -------------------------------------------------------------------------------------------------------


def _divided(a: Array, b: Array) -> Array:
    """a / b, towards 0 for integers."""
    return a / b if a.dtype.kind == "f" else np.floor_divide(a - np.fmod(a, b), b)


def _shifted_left(a: Array, by: Array) -> Array:
    bits = 8 * a.itemsize
    return np.where(by < bits, a << np.minimum(by, bits - 1).astype(a.dtype), a.dtype.type(0))


def _shifted_right(a: Array, by: Array) -> Array:
    bits = 8 * a.itemsize
    least = a >> a.dtype.type(bits - 1) if a.dtype.kind == "i" else a.dtype.type(0)
    return np.where(by < bits, a >> np.minimum(by, bits - 1).astype(a.dtype), least)


def _fused(a: Array, b: Array, c: Array) -> Array:
    """ab + c rounded once: exact for float32, and within one rounding of 2^-100 for float64."""
    if a.dtype == np.float32:
        product, c = a.astype(np.float64) * b, c.astype(np.float64)
        error = np.zeros_like(product)
    else:  # Dekker's product
        product, (x, y), (u, v) = a * b, _halves(a), _halves(b)
        error = ((x * u - product) + x * v + y * u) + y * v
    total = product + c
    part = total - product
    error += (product - (total - part)) + (c - part)
    if a.dtype != np.float32:
        return total + error
    # Round to odd first: an inexact sum whose last bit is 0 moves to its odd neighbour on the side of the error.
    even = (total.view(np.int64) & 1) == 0
    moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(even & (error != 0) & np.isfinite(total), moved, total).astype(np.float32)


def _halves(a: Array) -> tuple[Array, Array]:
    high = (a.view(np.int64) & ~np.int64((1 << 27) - 1)).view(np.float64)
    return high, a - high


def _permuted(a: Array, b: Array, how: Array) -> Array:
    """Four bytes of those of a and b; bit 3 of a choice takes its sign alone."""
    found = np.zeros_like(a)
    for n in range(4):
        choice = (how >> (4 * n)) & 15
        word = np.where(choice & 4, b, a)
        byte = (word >> (8 * (choice & 3))) & 255
        found |= np.where(choice & 8, (byte >> 7) * 255, byte).astype(a.dtype) << (8 * n)
    return found


def _field(a: Array, first: Array, count: Array) -> Array:
    """``count`` bits of a, from ``first`` on, with the sign of the highest where a is signed."""
    bits = 8 * a.itemsize
    up = _shifted_left(a, np.uint32(bits) - np.minimum(first + count, bits).astype(np.uint32))
    return np.where(count == 0, a.dtype.type(0), _shifted_right(up, np.uint32(bits) - count.astype(np.uint32)))


def _bits(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


_OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divided,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "popc": _bits,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "prmt": _permuted,
    "bfe": _field,
    "fma": _fused,
    "mad": lambda a, b, c: a * b + c,
}
_ROUNDED = ("add", "sub", "mul", "div", "sqrt", "fma")
"""Operations of floats that say how they round. Sums and products may leave it to the assembler, as here to us."""
_COUNTS = {"shl": (1,), "shr": (1,), "bfe": (1, 2)}
"""Operands that count bits: 32 wide, whatever the type."""

_COMPARED = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt}
_COMPARED |= {"ge": operator.ge, "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}


def _compared(how: str, a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return _COMPARED[how](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if how in ("num", "nan"):
        return unordered if how == "nan" else ~unordered
    return unordered | _COMPARED[how[:-1]](a, b) if how[-1] == "u" else ~unordered & _COMPARED[how](a, b)


def _converted(a: Array, to: np.dtype[Any]) -> Array:
    """As ``astype``; floats to integers towards 0, the nearest integer there is, and NaN to 0."""
    if to.kind == "f" or a.dtype.kind != "f":
        return a.astype(to)
    limits = np.iinfo(to)
    inside = (a > float(limits.min) - 1) & (a < float(limits.max) + 1)
    return np.where(inside, a, 0).astype(to) | np.where(
        inside | np.isnan(a), to.type(0), np.where(a > 0, to.type(limits.max), to.type(limits.min))
    )


# Memory -----------------------------------------------------------------------------------------------------------


class _Accesses:
    """Who has reached for each byte since the last barrier: two are one too many where one of them changes it.

    Several may write the same: Triton lets threads do so that hold copies of one number.
    """

    def __init__(self, size: int, what: str) -> None:
        self.what = what
        self.readers = np.full(size, -1, dtype=np.int32)  # -1 nobody, -2 several
        self.writers = self.readers.copy()

    def add(self, at: Array, who: Array, changed: Array | None = None) -> None:
        """``who`` reads bytes ``at``, or writes them; ``changed`` says which of them then have another value."""
        if changed is None:
            found, (own, others) = False, (self.readers, self.writers)
        else:
            found, (own, others) = changed & self._differ(self.writers, at, who), (self.writers, self.readers)
        found = found | self._differ(others, at, who)
        own[at] = np.where(self._differ(own, at, who), -2, who)
        own[at[own[at] != who]] = -2  # those of two who do so in one instruction
        if found.any():
            raise PtxError(f"a race: two {self.what} reach for byte {at[found][0]}, and one of them writes")

    @staticmethod
    def _differ(by: Array, at: Array, who: Array) -> Array:
        return (by[at] != -1) & (by[at] != who)

    def forget(self, rows: Array, size: int) -> None:
        for by in (self.readers, self.writers):
            by.reshape(-1, size)[rows] = -1


class _Memory:
    """Buffers that lie far apart; each access is inside one of them."""

    def __init__(self, buffers: Sequence[Array]) -> None:
        self.buffers = buffers
        self.bases = [((n + 1) << SPAN) + buffer.ctypes.data % 256 for n, buffer in enumerate(buffers)]
        self.by_block = [_Accesses(buffer.size, "blocks") for buffer in buffers]
        self.by_thread = [_Accesses(buffer.size, "threads") for buffer in buffers]

    def reach(self, at: Array, size: int, blocks: Array, threads: Array, new: Array | None) -> Array:
        """What lies there, (n, size) bytes; ``new`` is written, if any."""
        _aligned(at, size)
        found = np.empty((at.size, size), dtype=np.uint8)
        of = (at >> np.uint64(SPAN)).astype(np.int64) - 1
        for n in np.unique(of):
            mine = of == n
            first = self._places(n, at[mine], size)
            bytes_ = first[:, None] + np.arange(size)
            found[mine] = self.buffers[n][bytes_]
            changed = None if new is None else new[mine] != found[mine]
            self.by_block[n].add(bytes_, np.broadcast_to(blocks[mine, None], bytes_.shape), changed)
            if new is not None:
                self.by_thread[n].add(bytes_, np.broadcast_to(threads[mine, None], bytes_.shape), changed)
                _write(self.buffers[n], bytes_, new[mine])
        return found

    def _places(self, n: int, at: Array, size: int) -> Array:
        if not 0 <= n < len(self.buffers):
            raise PtxError(f"an access outside of every buffer, at {int(at[0]):#x}")
        first: Array = at.astype(np.int64) - self.bases[n]
        _inside(first, size, self.buffers[n].size, f"buffer {n}")
        return first

    def add(self, at: Array, value: Array) -> int:
        """What one thread's atomic sum of 64 bits finds there."""
        _aligned(at, 8)
        n = (int(at[0]) >> SPAN) - 1
        first = int(self._places(n, at, 8)[0])
        place = self.buffers[n][first : first + 8].view(np.uint64)
        before = int(place[0])
        place += value
        return before


def _write(memory: Array, at: Array, new: Array) -> None:
    memory[at] = new
    if (memory[at] != new).any():
        raise PtxError("a race: two threads write different values to one place at once")


def _aligned(at: Array, size: int) -> None:
    wrong = at % at.dtype.type(size) != 0
    if wrong.any():
        raise PtxError(f"a misaligned access: {size} bytes at {int(at[wrong][0]):#x}")


def _inside(first: Array, size: int, of: int, name: str) -> None:
    wrong = (first < 0) | (first > of - size)
    if wrong.any():
        raise PtxError(f"an access outside of {name} ({of} bytes): {size} bytes at {int(first[wrong][0])}")


# Code -------------------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """Instructions that all lanes here do one after another."""

    steps: list[Step] = field(default_factory=list)
    next: Callable[[], Array] | None = None  # where each lane goes; to the following block if None
    group: int = 0  # lanes that must be here together: those of a warp, or of a block of threads


_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_TYPE = re.compile(r"pred|[busf](?:8|16|32|64)|f32x2")


def _dtype(kind: str) -> np.dtype[Any]:
    if kind in ("pred", "f32x2"):
        return np.dtype(bool if kind == "pred" else np.uint64)
    return np.dtype({"b": "u", "s": "i"}.get(kind[0], kind[0]) + str(int(kind[1:]) // 8))


def _parts(operand: str) -> list[str]:
    return re.findall(r"[^\s,+{}\[\]]+", operand)


class Kernel:
    """A kernel of PTX, parsed; ``launch`` runs it."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"[ \t]*//.*|^[ \t]*\.loc\b.*", "", text, flags=re.MULTILINE)
        found = re.search(r"\.entry\s+(\w+)\((.*?)\)\s*(\..*?)\n\{\n(.*?)\n\}", text, re.DOTALL)
        assert found is not None, text
        self.name, parameters, head, body = found.groups()
        self.parameters = re.findall(r"\.param\s+\.(\w+)[^,]*?(\w+)\s*(?:,|$)", parameters)
        self.threads = int(re.findall(r"\.(?:req|max)ntid\s+(\d+)", head)[0])
        self.lanes = np.arange(LANES // self.threads * self.threads)
        self.values: dict[str, Array] = {
            "%tid.x": (self.lanes % self.threads).astype(np.uint32),
            "%ctaid.x": np.zeros(self.lanes.size, dtype=np.uint32),
            "global_smem": np.zeros((), dtype=np.uint32),
            **{name: np.zeros((), dtype=_dtype(kind)) for kind, name in self.parameters},
        }
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}
        self.blocks = [_Block()]
        for statement in body.split(";"):
            self._add(statement.strip())
        self._cut()

    def _add(self, statement: str) -> None:
        while label := re.match(r"([$\w]+):\s*", statement):
            self._cut()
            self.labels[label[1]] = len(self.blocks) - 1
            statement, self.label = statement[label.end() :], label[1]
        if declared := re.match(r"\.reg\s+\.(\w+)\s+(%\w+)<(\d+)>", statement):
            dtype = _dtype(declared[1])
            for n in range(int(declared[3])):
                byte = RUBBISH if declared[1] != "pred" else n % 2
                rubbish = np.full(self.lanes.size * dtype.itemsize, byte, dtype=np.uint8)
                self.values[f"{declared[2]}{n}"] = rubbish.view(dtype)
        elif statement.startswith(".branchtargets"):
            self.tables[self.label] = re.findall(r"[$\w]+", statement)[1:]
        elif statement:
            try:
                self._instruct(statement)
            except (KeyError, ValueError, IndexError) as error:
                raise UnknownError(statement) from error

    def _cut(self) -> None:
        if self.blocks[-1].steps or self.blocks[-1].next:
            self.blocks.append(_Block())

    def _instruct(self, statement: str) -> None:
        found = re.fullmatch(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", statement, re.DOTALL)
        if found is None:
            raise UnknownError(statement)
        negated, guard, whole, rest = found.groups()
        name, *words = whole.split(".")
        operands = _OPERAND.findall(rest)
        kinds, how = [w for w in words if _TYPE.fullmatch(w)], [w for w in words if not _TYPE.fullmatch(w)]
        if name in ("bra", "brx", "ret"):
            self.blocks[-1].next = self._jump(name, operands, guard, bool(negated))
            self._cut()
            return
        together = self.threads if whole == "bar.sync" else WARP * ("sync" in how)
        if together and guard is not None:
            raise UnknownError(statement)
        if together:  # a block of its own, where lanes wait for each other
            self._cut()
            self.blocks[-1].group = together
        step = getattr(self, f"_do_{name}", self._plain)(name, how, kinds, operands)
        self.blocks[-1].steps.append(step if guard is None else self._guarded(step, guard, bool(negated)))
        if together:
            self._cut()

    def _guarded(self, step: Step, guard: str, negated: bool) -> Step:
        when = self.values[guard]
        return lambda active: step(active & (when != negated))

    def _jump(self, name: str, operands: list[str], guard: str | None, negated: bool) -> Callable[[], Array]:
        after = len(self.blocks)

        def there() -> Array:
            if name == "brx":
                targets = np.array([self.labels[label] for label in self.tables[operands[1]]])
                return targets[np.minimum(self.values[operands[0]], len(targets) - 1)]
            return np.full(self.lanes.size, self.labels[operands[0]] if name == "bra" else len(self.blocks))

        return there if guard is None else lambda: np.where(self.values[guard] != negated, there(), after)

    # Operands

    def _read(self, operand: str, kind: str, *, low: bool = False) -> Array:
        """A register, seen as this type, or a number; of a wider register the lower part, where that is allowed."""
        dtype = _dtype(kind)
        if operand in self.values:
            value = self.values[operand]
        elif number := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", operand):
            value = np.array(int(number[1], 16), dtype=f"u{len(number[1]) // 2}")
        else:
            value = np.array(int(operand.rstrip("U"), 0) % (1 << 8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
        if low and value.itemsize > dtype.itemsize:
            return value.view(dtype)[:: value.itemsize // dtype.itemsize]
        if value.itemsize != dtype.itemsize:
            raise ValueError(operand)
        return value.view(dtype)

    def _put(self, operand: str, kind: str) -> Callable[[Array, Array], None]:
        """What writes values of this type to a register, where lanes are active; a wider one has their sign, or 0."""
        if operand == "_":
            return lambda active, value: None
        register, dtype = self.values[operand], _dtype(kind)
        if register.itemsize > dtype.itemsize and dtype.kind in "ui":
            wide = register.view(f"{dtype.kind}{register.itemsize}")
            return lambda active, value: np.copyto(wide, value.astype(wide.dtype), where=active)
        register = self._read(operand, kind)
        return lambda active, value: np.copyto(register, value, where=active, casting="no")

    def _address(self, operand: str, kind: str) -> Callable[[], Array]:
        base, *offset = _parts(operand)
        at, by = self._read(base, kind), _dtype(kind).type(int(offset[0]) % 2**32 if offset else 0)
        return lambda: np.broadcast_to(at + by, self.lanes.shape)

    # Instructions: each gives the step that does it

    def _plain(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        (kind,), function, counts = kinds, _OPERATIONS[name], _COUNTS.get(name, ())
        known = [["lo"], ["wide"]] if name in ("mul", "mad") else [[]]
        if kind[0] == "f" and name in _ROUNDED:
            known = [["rn"], []] if name in ("add", "sub", "mul") else [["rn"]]
        elif kind[0] == "f" and name == "min":
            known = []  # numpy's has other NaN
        to, *own = operands
        wide = f"{kind[0]}{2 * int(kind[1:])}" if how == ["wide"] else kind
        types = ["u32" if n in counts else wide if n == 2 else kind for n in range(len(own))]
        sources = [self._read(*each) for each in zip(own, types, strict=True)]
        if how not in known:
            raise ValueError(how)
        put, dtype = self._put(to, wide), _dtype(wide)
        if kind == "f32x2":
            sources = [np.broadcast_to(source, self.lanes.shape).view(np.float32) for source in sources]
        if how == ["wide"]:
            return lambda active: put(active, function(*(source.astype(dtype) for source in sources)))
        return lambda active: put(active, function(*sources).view(dtype))

    def _do_setp(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        (kind,), (compared,) = kinds, how
        a, b = (self._read(operand, kind) for operand in operands[1:])
        put = self._put(operands[0], "pred")
        return lambda active: put(active, np.asarray(_compared(compared, a, b)))

    def _do_selp(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        (kind,) = kinds
        a, b, which = (self._read(o, k) for o, k in zip(operands[1:], (kind, kind, "pred"), strict=True))
        put = self._put(operands[0], kind)
        return lambda active: put(active, np.where(which, a, b))

    def _do_cvt(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        to, of = kinds
        exact = (to[0] != "f" and of[0] != "f") or (to == "f64" and of in ("f16", "f32")) or (to, of) == ("f32", "f16")
        rounding = [] if exact else ["rn"] if to[0] == "f" else ["rzi"]
        if how != rounding:
            raise ValueError(how)
        put, source = self._put(operands[0], to), self._read(operands[1], of, low=True)
        return lambda active: put(active, _converted(source, _dtype(to)))

    def _do_mov(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        (kind,), (to, of) = kinds, operands
        parts = _parts(to if "{" in to else of)
        part = f"u{int(kind[1:]) // len(parts)}" if len(parts) > 1 else kind
        if len(parts) > 1 and "{" in to:  # the lowest bits come first
            puts, source = [self._put(own, part) for own in parts], self._read(of, kind)

            def taken(active: Array) -> None:
                every = np.broadcast_to(source, self.lanes.shape).copy().view(_dtype(part)).reshape(-1, len(parts))
                for n, put in enumerate(puts):
                    put(active, every[:, n])

            return taken
        put, sources = self._put(to, kind), [self._read(own, part) for own in parts]

        def joined(active: Array) -> None:
            every = [np.broadcast_to(source, self.lanes.shape) for source in sources]
            put(active, np.stack(every, axis=1).view(_dtype(kind))[:, 0])

        return joined

    # Memory

    def _do_ld(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        space, *vector = how
        (kind,), to = kinds, _parts(operands[0])
        if space == "param":
            put, source = self._put(to[0], kind), self.values[_parts(operands[1])[0]].reshape(1).view(_dtype(kind))
            return lambda active: put(active, source[:1])  # the lower half where that is all that is used
        self._check_vector(vector, to)
        dtype, puts = _dtype(kind), [self._put(own, kind) for own in to]
        reach, at = self._space(space, operands[1])

        def step(active: Array) -> None:
            found = reach(at(), active, len(to) * dtype.itemsize, None).view(dtype)
            every = np.empty(self.lanes.size, dtype=dtype)
            for n, put in enumerate(puts):
                every[active] = found[:, n]
                put(active, every)

        return step

    def _do_st(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        space, *vector = how
        (kind,), of = kinds, _parts(operands[1])
        self._check_vector(vector, of)
        sources = [self._read(own, kind, low=True) for own in of]
        reach, at = self._space(space, operands[0])

        def step(active: Array) -> None:
            every = [np.broadcast_to(source, self.lanes.shape)[active] for source in sources]
            new = np.stack(every, axis=1).view(np.uint8)
            reach(at(), active, new.shape[1], new)

        return step

    @staticmethod
    def _check_vector(vector: list[str], parts: list[str]) -> None:
        if vector != ([f"v{len(parts)}"] if len(parts) > 1 else []):
            raise ValueError(vector)

    def _space(self, space: str, operand: str) -> tuple[Callable[..., Array], Callable[[], Array]]:
        if space == "global":
            return self._reach_global, self._address(operand, "u64")
        if space not in ("shared", "shared::cta"):
            raise ValueError(space)
        return self._reach_shared, self._address(operand, "u32")

    def _reach_global(self, at: Array, active: Array, size: int, new: Array | None) -> Array:
        block = self.values["%ctaid.x"][active]
        thread = block * np.uint32(self.threads) + self.values["%tid.x"][active]
        return self.memory.reach(at[active], size, block.astype(np.int32), thread.astype(np.int32), new)

    def _reach_shared(self, at: Array, active: Array, size: int, new: Array | None) -> Array:
        """Bytes (n, size) of each lane's own block; ``new`` is written, if any."""
        at, lane = at[active], self.lanes[active]
        _aligned(at, size)
        _inside(at.astype(np.int64), size, self.shared, "shared memory")
        bytes_ = at[:, None].astype(np.int64) + np.arange(size)
        warp, block = lane[:, None] // WARP, lane[:, None] // self.threads
        own = block * self.shared + bytes_
        found = self.shared_memory[own]
        changed = None if new is None else new != found
        self.by_warp.add(own, np.broadcast_to(warp, own.shape), changed)
        self.by_lane.add(warp * self.shared + bytes_, np.broadcast_to(lane[:, None], own.shape), changed)
        if new is not None:
            _write(self.shared_memory, own, new)
        return found

    def _do_atom(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        if how != ["global", "gpu", "acq_rel", "add"] or kinds != ["u64"]:
            raise ValueError(how)
        put, at, source = (
            self._read(operands[0], "u64"),
            self._address(operands[1], "u64"),
            self._read(operands[2], "u64"),
        )

        def step(active: Array) -> None:
            for lane in np.flatnonzero(active):  # one after another; no race, whoever does it
                put[lane] = self.memory.add(at()[lane : lane + 1], source[lane])

        return step

    # Lanes together

    def _do_bar(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        if (how, operands) not in ((["sync"], ["0"]), (["warp", "sync"], ["-1"])):
            raise ValueError(how)

        def step(active: Array) -> None:
            if how == ["sync"]:
                self.by_warp.forget(np.unique(self.lanes[active] // self.threads), self.shared)
            self.by_lane.forget(np.unique(self.lanes[active] // WARP), self.shared)

        return step

    def _do_shfl(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        to, of, by, clamp, mask = operands
        if how not in (["sync", "bfly"], ["sync", "idx"]) or (clamp, mask) != ("31", "-1"):
            raise ValueError(how)
        put, source, number = self._put(to, "b32"), self._read(of, "b32"), self._read(by, "u32")
        first = self.lanes // WARP * WARP

        def step(active: Array) -> None:
            own = self.lanes % WARP ^ number if how[1] == "bfly" else number
            put(active, np.broadcast_to(source, self.lanes.shape)[first + own % WARP])

        return step

    def _do_redux(self, name: str, how: list[str], kinds: list[str], operands: list[str]) -> Step:
        (kind,) = kinds
        if how != ["sync", "add"]:
            raise ValueError(how)
        put, source, mask = self._put(operands[0], kind), self._read(operands[1], kind), self._read(operands[2], "u32")

        def step(active: Array) -> None:
            if (np.broadcast_to(mask, self.lanes.shape)[active] != 2**32 - 1).any():
                raise UnknownError("redux.sync of a part of a warp")
            every = np.broadcast_to(source, self.lanes.shape).reshape(-1, WARP)
            put(active, every.sum(axis=1, dtype=every.dtype).repeat(WARP))

        return step

    # Running

    def launch(self, grid: int, arguments: Sequence[Array | int], shared: int) -> None:
        """Run ``grid`` blocks.

        Args:
            grid: How many.
            arguments: Of the parameters, in order: bytes where a pointer is wanted, and numbers. Further ones are 0.
            shared: Bytes of shared memory.
        """
        self.memory = _Memory([each for each in arguments if isinstance(each, np.ndarray)])
        bases = iter(self.memory.bases)
        for (kind, name), each in zip(self.parameters, arguments, strict=False):
            number = next(bases) if isinstance(each, np.ndarray) else each
            self.values[name][...] = self._read(str(number), kind)
        blocks = self.lanes.size // self.threads
        with np.errstate(all="ignore"):
            for first in range(0, grid, blocks):
                self.values["%ctaid.x"][:] = first + self.lanes // self.threads
                self.shared = max(shared, 1)
                self.shared_memory = np.full(blocks * self.shared, RUBBISH, dtype=np.uint8)
                self.by_warp = _Accesses(blocks * self.shared, "warps")
                self.by_lane = _Accesses(self.lanes.size // WARP * self.shared, "lanes of a warp")
                self._run(self.values["%ctaid.x"] < grid)

    def _run(self, alive: Array) -> None:
        end = len(self.blocks)
        at, waiting = np.where(alive, 0, end), np.zeros(self.lanes.size, dtype=bool)
        for _ in range(MOST_STEPS):
            going = ~waiting & (at < end)
            if not going.any():
                if waiting.any():
                    raise PtxError("a barrier to which not all threads come")
                return
            n = int(at[going].min())
            block, active = self.blocks[n], at == n
            if block.group:
                whole = active.reshape(-1, block.group).all(axis=1).repeat(block.group)
                waiting = (waiting | active) & ~whole
                active = whole & active
            for step in block.steps:
                step(active)
            at[active] = n + 1 if block.next is None else block.next()[active]
        raise PtxError(f"no end after {MOST_STEPS} steps")
