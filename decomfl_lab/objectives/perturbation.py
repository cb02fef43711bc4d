"""The loss at x + μ z_p of any module, beside x and a tensor at a time.

Each torch function is given fl(w + fl(μ z)) instead of w, and x is never written. To move x there and back, as MeZO
does, is the simpler way, but fl(fl(x + y) − y) ≠ x in general: x drifts away by rounding, like a random walk.
"""

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.trees import tensors
from decomfl_lab.objectives.trials.needs import Calls
from decomfl_lab.replicas.rebuild import axpy_, blocks_of
from decomfl_lab.storage.tables import table_beside

CHUNK = 1 << 16
"""Elements of the buffer through which a tensor that the kernel cannot take as it is gets its noise."""

_VALUE_GETTERS = frozenset(
    getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag", "__cuda_array_interface__")
)
"""The properties that hold a tensor's elements; all others (shape, dtype, grad, ...) only say what it is."""

_READS = {kind: frozenset(names) for kind, names in table_beside(__name__, "perturbation.toml")["reads"].items()}
"""Names of functions that read no element of what they are given, or only those of the first argument."""


class _Part(NamedTuple):
    """A parameter, its name and its place in x."""

    name: str
    w: nn.Parameter
    first: int


def memory_of(t: Tensor) -> int | None:
    """The address of the storage; None for tensors without one (sparse, or wrapped by vmap)."""
    try:
        return t.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return None


def reads_no_element(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a torch function, called with these arguments, only asks or sets what a tensor is."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return func not in _VALUE_GETTERS
    asks_type = name == "type" and len(args) == 1  # with a second argument it converts
    return asks_type or name in _READS["none"] or name.endswith("_like") or name.startswith("new_")


class Moved(Calls):
    """Gives every torch function fl(w + fl(c z)) for w.

    A Python function of torch.nn.functional runs its inside without this mode, with the weights it was given.
    """

    def __init__(
        self, parts: Sequence[_Part], direction: tuple[int, int, Distribution], c: float, *, wide: bool, in_blocks: bool
    ) -> None:
        super().__init__()
        self.parts = {id(part.w): part for part in parts}
        # Small tensors may be formed together with their neighbours: of these blocks the last is kept.
        numbers = blocks_of([part.w.detach() for part in parts]) if in_blocks else []
        blocks = [[parts[n] for n in block] for block in numbers]
        shared = [block for block in blocks if len(block) > 1]
        self.blocks = {id(part.w): block for block in shared for part in block}
        self.block: tuple[int, dict[int, Tensor]] = 0, {}
        self.direction, self.c, self.wide = direction, c, wide
        self.d = sum(part.w.numel() for part in parts)
        self.reached: set[int] = set()  # ids of the parameters whose elements some function was given
        self.watched: list[tuple[weakref.ref[Tensor], int, str]] = []

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise InputError(f"{func} runs functions of its own, whose weights cannot be replaced")
        if reads_no_element(func, args):
            return func(*args, **kwargs)
        # Attributes are set as they are, but for w.data, by which x would be written to.
        if getattr(func, "__name__", "") == "__set__":
            if func == Tensor.data.__set__ and id(args[0]) in self.parts:  # type: ignore[attr-defined]
                _refuse_write(func, self.parts[id(args[0])].name)
            return func(*args, **kwargs)

        if func is torch.nn.functional.embedding and (looked_up := self.looked_up(args, kwargs)) is not None:
            return looked_up
        formed: dict[int, Tensor] = {}
        calls = getattr(func, "__module__", None) == "torch.nn.functional"
        # Every parameter among the arguments is exchanged for a fresh tensor, which must come back unwritten.
        if getattr(func, "__name__", "") in _READS["first"]:
            args = (*(self._swap(arg, formed, calls) for arg in args[:1]), *args[1:])
        else:
            args = tuple(self._swap(arg, formed, calls) for arg in args)
            kwargs = {key: self._swap(value, formed, calls) for key, value in kwargs.items()}
        versions = {key: t._version for key, t in formed.items()}
        result = func(*args, **kwargs)
        for key, t in formed.items():
            if t._version != versions[key]:
                _refuse_write(func, self.parts[key].name)
        if formed:
            # Remember what of the formed tensors outlives the call, views above all: no one may write to it.
            names = {memory_of(t): self.parts[key].name for key, t in formed.items() if t.numel()}
            for t in (*formed.values(), *tensors(result)):
                name = names.get(memory_of(t))
                if name is not None and not t.is_inference():
                    self.watched.append((weakref.ref(t), t._version, name))
        if self.watched:
            self.watched = [entry for entry in self.watched if entry[0]() is not None]
            for reference, version, whose in self.watched:
                still = reference()
                if still is not None and still._version != version:
                    _refuse_write(func, whose)
        return result

    def formed(self, w: Tensor, first: int) -> Tensor:
        """A fresh tensor fl(w + fl(c z)), where element j of w in row-major order is element first + j of x.

        It has the strides of w where w is dense. A 16-bit w is widened to float32, moved, and, unless ``wide``, rounded
        once.
        """
        seed, p, distribution = self.direction

        def add_(y: Tensor, first: int) -> None:
            if self.c:  # else every bit stays, that of -0 too
                axpy_(y, seed, [self.c], d=self.d, first=first, first_p=p, distribution=distribution)

        # A tensor made in inference mode would not count the writes to it.
        with torch.inference_mode(False), torch.no_grad():
            w = w.detach()
            work = torch.promote_types(w.dtype, torch.float32)
            dtype = work if self.wide else w.dtype
            # In one piece where the kernel can write what is wanted; on a CPU a result in 16 bits would need a float32
            # copy of w.
            if w.is_contiguous() and (w.is_cuda or work == dtype):
                whole = w.to(work, copy=True)
                add_(whole.view(-1), first)
                return whole.to(dtype)
            # Else by rows, through a buffer of at most CHUNK elements (or a row): fl(w + fl(c z)) is rounded where it
            # is copied.
            formed = torch.empty_like(w, dtype=dtype)
            source, target = w, formed
            if w.is_contiguous():
                source, target = w.view(-1), formed.view(-1)
            elements = source[:1].numel()
            step = max(1, CHUNK // max(1, elements))
            for a in range(0, source.shape[0], step):
                part = source[a : a + step]
                buffer = torch.empty(part.numel(), dtype=work, device=w.device)
                buffer.view(part.shape).copy_(part)
                add_(buffer, first + a * elements)
                target[a : a + step].copy_(buffer.view(part.shape))
            return formed

    def looked_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """What ``functional.embedding`` looks up in a parameter; few of the other rows are formed.

        None if it writes to the parameter, or is called otherwise.
        """
        rows, weight, _, max_norm = (*args, None, None, None)[:4]
        part = self.parts.get(id(weight))
        plain = kwargs.get("max_norm", max_norm) is None and part is not None and part.w.is_contiguous()
        if part is None or not plain or torch._C._functorch.is_functorch_wrapped_tensor(rows):  # by vmap over data
            return None
        self.reached.add(id(weight))
        w = part.w.detach()
        if w.is_cuda:  # to form all takes less time there than to ask it which are wanted
            return self.formed(w, part.first)[rows]
        # Wanted rows that lie within CHUNK elements are formed as one block, with those between them.
        distinct, places = rows.unique(return_inverse=True)
        width = w.shape[1]
        dtype = torch.promote_types(w.dtype, torch.float32) if self.wide else w.dtype
        formed = w.new_empty((len(distinct), width), dtype=dtype)
        at_once = max(1, CHUNK // max(1, width))
        a = 0
        while a < len(distinct):
            top = distinct[a]
            b = int(torch.searchsorted(distinct, top + at_once))
            wanted = distinct[a:b] - top
            formed[a:b] = self.formed(w[top : top + wanted[-1] + 1], part.first + int(top) * width)[wanted]
            a = b
        return formed[places]

    def _form(self, part: _Part) -> Tensor:
        """The tensor that takes the place of a parameter."""
        block = self.blocks.get(id(part.w))
        if block is None:
            t = self.formed(part.w, part.first)
        else:
            # It is formed with the rest of the block, and is the same tensor for as long as that is kept.
            if self.block[0] != id(block):
                self.block = 0, {}  # before there is another
                with torch.inference_mode(False), torch.no_grad():
                    weights = [member.w.detach() for member in block]
                    whole = torch.cat([w.view(-1) for w in weights])
                    pieces = self.formed(whole, block[0].first).split([w.numel() for w in weights])
                    # Each has memory of its own, which a view of it that stays keeps, and no more.
                    copies = [piece.view(w.shape).clone() for w, piece in zip(weights, pieces, strict=True)]
                    made = {id(member.w): copy for member, copy in zip(block, copies, strict=True)}
                self.block = id(block), made
            t = self.block[1][id(part.w)]
        # matmul folds its operands, and so rounds, by this flag even where no graph is recorded. Where one is, or
        # where autocast keeps casts of what has the flag, it would keep every formed tensor in memory.
        if part.w.requires_grad and not torch.is_grad_enabled() and not torch.is_autocast_enabled(t.device.type):
            t.requires_grad_()
        return t

    def _swap(self, value: Any, formed: dict[int, Tensor], calls: bool) -> Any:
        """The value with parameters replaced, however deep in lists, tuples and dicts; each is formed once.

        Callables are taken into this mode if ``calls``. (No closure: its cycle would keep the tensors alive.)
        """
        if isinstance(value, Tensor):
            part = self.parts.get(id(value))
            if part is None:
                return value
            if id(value) not in formed:
                formed[id(value)] = self._form(part)
                self.reached.add(id(value))
            return formed[id(value)]
        if isinstance(value, list | tuple):
            items = [self._swap(item, formed, calls) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            swapped = {key: self._swap(item, formed, calls) for key, item in value.items()}
            return swapped if any(swapped[key] is not value[key] for key in value) else value
        if not calls or not callable(value) or isinstance(value, type):
            return value

        def inside(*args: Any, **kwargs: Any) -> Any:
            """The value under this mode, which torch.nn.functional suspends while it calls it."""
            with self:
                return value(*args, **kwargs)

        return inside


def _refuse_write(writer: Any, name: str) -> NoReturn:
    """InputError that names a function of torch, or says what else writes."""
    name_of_writer = str(getattr(writer, "__name__", writer))
    if name_of_writer == "__set__":
        name_of_writer = f"{writer.__self__.__name__}.__set__"
    raise InputError(
        f"{name_of_writer} writes to parameter {name!r} inside a forward pass; "
        "f(x + mu z) is a function of x only where the forward pass leaves x alone"
    )


def stamp_of(w: Tensor) -> tuple[int, int, tuple[int, ...]]:
    """What changes when w is written to by any function of torch, or is given other memory."""
    return w.data_ptr(), -1 if w.is_inference() else w._version, tuple(w.shape)


@contextmanager
def moved(
    named: Sequence[tuple[str, nn.Parameter]],
    seed: int,
    p: int,
    mu: float,
    *,
    distribution: Distribution = Distribution.GAUSSIAN,
    strict: bool = True,
    wide: bool = False,
    in_blocks: bool = True,
) -> Iterator[None]:
    """Inside, what is computed with these parameters is so at x + μ z_p, and no bit of x is ever written.

        w_j → fl(w_j + fl(μ z(seed, p)[first + j])),    j in row-major order, whatever the strides of w

    Every torch function called on this thread that is given one of the parameters (alone, or in a list, tuple or dict)
    is given a fresh tensor instead, which dies when the call returns. So what is used without a forward method of its
    own (tied weights, ``out_proj`` of ``nn.MultiheadAttention``) is perturbed too, and the extra memory is at most φ,
    the largest set of parameters that one function takes, here and in the paper one layer; of an embedding's table,
    often the largest of all, no more than the rows that are looked up and ``CHUNK`` elements. It takes longer to live
    only where a view of it does (``w.t()`` in a variable), or where a graph to the inputs is recorded. Parameters in
    bfloat16 or float16 are widened to float32, moved and rounded once; those, and ones that are not contiguous or not
    on the CPU, go through a buffer of ``CHUNK`` elements (or one row, if that is more).

    The loss is to the bit that of a copy of the module at x + μ z_p for float32 and float64 where no graph is recorded,
    the forward pass is deterministic, and the same kernels run: the mode switches off the fused inference kernels of
    ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``, as any torch function mode does, and parameters with
    gaps in memory are formed without. Elsewhere it agrees to the rounding of the kernels. Outputs have no graph back to
    x. A module may be in training mode too, if its forward pass writes to no parameter.

    Not seen, because no torch function is called with the parameter itself: ``torch.jit.ScriptFunction``, what
    ``torch.compile`` made, extensions without dispatch, other threads, ``nn.Parameter(w)``, ``torch.vmap`` over w (but
    vmap over data is right). ``strict`` finds them where the parameter is used in no other way.

    Args:
        named: The parameters, which are x in this order, each once, with what errors call it.
        seed: The seed of the directions.
        p: The number of the direction.
        mu: The distance, of either sign, which is rounded to float32; 0 gives f(x).
        distribution: The distribution of the directions.
        strict: Whether a parameter that is not used is an error.
        wide: Whether 16-bit parameters are formed as float32 tensors and not rounded, as a step of μ is below the
            16-bit grid. With float32 inputs the whole forward pass is then float32's.
        in_blocks: Whether small parameters are formed with their neighbours, up to ``rebuild.BLOCK`` elements together,
            which is faster, and takes that much more memory.

    Raises:
        InputError: At entry, if μ is out of range. Inside, if a function writes to a parameter (to the fresh
            tensor, so x is unharmed). At a normal exit, if x was written to past torch's functions (``w.set_``); and
            with ``strict``, if no torch function was given the elements of some parameter: its perturbation would be
            lost in silence.

    Source: [DeComFL, eq. (zo-grad)], and the peak memory d + φ of its perturbed forward passes.
    """
    firsts = accumulate((w.numel() for _, w in named), initial=0)
    parts = [_Part(name, w, first) for (name, w), first in zip(named, firsts, strict=False)]
    with np.errstate(over="ignore"):
        c = float(np.float32(mu))  # as the stream multiplies by it
    fine = math.isfinite(c) and (c != 0 or mu == 0)
    require(fine, "mu rounded to float32", "be finite, and 0 only if mu is", mu)
    mode = Moved(parts, (seed, p, distribution), c, wide=wide, in_blocks=in_blocks)
    before = [stamp_of(part.w) for part in parts]
    with mode:
        yield
    for part, stamp in zip(parts, before, strict=True):
        if stamp_of(part.w) != stamp:
            _refuse_write("something that is no torch function", part.name)
    lost = [part.name for part in parts if id(part.w) not in mode.reached]
    if strict and lost:
        raise InputError(
            f"no torch function was given parameter {', '.join(map(repr, lost))}, so the loss does not see its "
            "perturbation; if the forward pass really does not use it, set strict=False"
        )
