"""Whether torch's derivatives are f's, by differences: of gradients before a run, of products before κ.

    ∇f(x)ᵀv    against  [f(x + cv) − f(x − cv)]/(2c)
    H v        against  [∇f(x + cv) − ∇f(x − cv)]/(2c)
    J v        against  [z(x + cv) − z(x − cv)]/(2c),    z the module's outputs, and likewise for the loss in them

It is done with the first product of an operator, over all the data, and costs two gradients, or two evaluations. A
backward that is another function's, a hook or a ``detach`` in between makes both differ by tens of per cent; rounding
of differences in float32, with steps of ‖x‖/1000, leaves 1e-3. Where they do not agree they are taken again in float64,
with smaller steps. Kinks (ReLU, max-pooling) are no fault: gradients jump where a step crosses one, by much more than
Hv where the step is small. So they need float64 from the beginning, with steps so small that few are crossed; pieces of
the data with a jump are tried again with smaller ones.

Where float64 cannot be had (a module that does not take it, or no room), differences in float32 stand in: what they
agree with passes, and what two of them, of different steps, disagree with by more than with each other is refused.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from decomfl_lab.devices import room
from decomfl_lab.errors import InputError
from decomfl_lab.objectives.function import Function, Piece, enabled
from decomfl_lab.objectives.trees import mapped, tensors
from decomfl_lab.objectives.trials.culprit import Order, culprit
from decomfl_lab.objectives.trials.needs import Calls
from decomfl_lab.objectives.trials.trial import FAR, Trial, refuse
from decomfl_lab.objectives.vectors import BLOCK, add_, inner, length, moved, relative
from decomfl_lab.plugins import taking

AGREES = 1e-2
"""Derivatives that differ less from differences, relative to their size, are taken for f's. What is wrong is wrong by
tens of per cent; float32 leaves 1e-4."""

SLOPES = (1e-6, 1e-4, 1e-3)
"""Steps relative to |x| at which differences of values in float64 are tried: coarser ones where a module computes in
float32 whatever it is given. A kink changes them by as much as the step."""

_ROUNDED = 8
"""Rounding of a loss in its own precision, in ε|f|: sums over tokens leave a few."""


def is_slope(slope: float, size: float, difference: Callable[[float], float]) -> bool:
    """Whether a derivative ∇fᵀz is (f(x + cz) − f(x − cz))/(2c), at one of the relative steps ``SLOPES``.

    Its ``size`` is what it is typically for such a z, as ‖∇f‖ for a normal one.
    """
    for step in SLOPES:
        rise = difference(step)
        if abs(rise - slope) <= AGREES * max(size, abs(rise)):
            return True
    return False


def is_gradient(x: Tensor, gradient: Tensor, z: Tensor, value: Callable[[Tensor], float]) -> tuple[bool, float, float]:
    """Whether ∇fᵀv is a difference of values along v = ∇f/‖∇f‖ + z/2, for a random z of length 1.

    With it are ∇fᵀv, and [f(x + cv) − f(x − cv)]/(2c) at the coarsest step that was tried. Points and v have the dtype
    of x (d,).
    """
    size = float(gradient.norm())
    v = 0.5 * z + gradient / size if size else z
    slope, tried = float(gradient @ v), [0.0]

    def difference(step: float) -> float:
        c = relative(x, v, step)
        high, low = value(x + c * v), value(x - c * v)
        tried.append((high - low) / (2 * c))
        rounding = 8 * _ROUNDED * torch.finfo(torch.float64).eps * max(abs(high), abs(low)) / (2 * c)
        return slope if abs(tried[-1] - slope) <= rounding else tried[-1]  # at a flat place there is nothing else

    return is_slope(slope, size, difference), slope, tried[-1]


def sloped(f: Function, x: Tensor, method: str, *, varies: bool, mend: Callable[[], str]) -> Iterator[str]:
    """Where ∇fᵀv of a piece is no difference of values along v = ∇f/‖∇f‖ + z/(2‖z‖), z random.

    Both are computed in float64 where module and loss take it; a kink moves a difference of values by as much as the
    step. A loss that ``varies`` from x to a point near it must have a slope somewhere. Findings say what ``method``
    needs gradients, and end with what ``mend`` gives: what would need none, if that was tried.
    """
    z = torch.randn(x.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = (z / z.norm()).to(x.device)
    wide = cache(f.wide)
    flat = varies

    def agrees(f: Function, gradient: Tensor, piece: Piece) -> tuple[bool, float, float]:
        return is_gradient(x.double(), gradient, z, lambda point: f.piece_value(point.to(f.dtype), piece))

    # A finding leaves this function with torch's modes as they were: who gets it may never come back.
    for piece in f.pieces:
        blamed = ""
        with enabled():
            with taking(piece.name, tensors(piece.batch)):
                gradient = f.piece_gradient(x, piece).double()
            flat = flat and not gradient.any()
            try:
                right, slope, change = agrees(wide(), gradient, piece)
                if not right:  # rounding of a loss that is nearly zero, perhaps
                    right, slope, change = agrees(wide(), wide().piece_gradient(x.double(), piece), piece)
            except Exception:  # a module, or a loss, that takes no float64
                right, slope, change = agrees(f, gradient, piece)
            if not right:
                with f.at(x):
                    blamed = culprit(f.module, f.measure, [piece.batch], [Order.FIRST])
        if not right:
            yield (
                f"loss must have the derivative that torch gives, for {method}, got {slope:.3g} along a direction "
                f"where values of {piece.name} change by {change:.3g}: is there a backward of your own, a hook, or "
                f"detach in between?{mend()}{blamed}"
            )
    if flat:
        near = moved(x, FAR[0])
        with enabled():
            flat = not any(f.piece_gradient(near, piece).any() for piece in f.pieces)
    if flat:
        yield (
            f"loss must have slopes for {method}, got a gradient that is 0 in every parameter, at x_0 and near it, "
            f"though the loss changes there: round, sign, argmax and comparisons have none.{mend()}"
        )


# --- products ---------------------------------------------------------------------------------------------------------

Found = TypeVar("Found")
Rung = tuple[bool, float]
"""Whether a difference is taken in float64, and its step relative to ‖x‖."""
SMOOTH: tuple[Rung, ...] = ((False, 1e-3), *((True, step) for step in SLOPES), (True, 1e-9))
"""The differences that are tried; the coarser of those in float64 are for modules that compute in float32 anyway."""
KINKED: tuple[Rung, ...] = ((True, 1e-9), (True, 1e-10), (True, 1e-11), *((True, step) for step in SLOPES))
"""The same for gradients where there may be kinks; the coarser ones are for those that are none."""
NARROW: tuple[Rung, ...] = ((False, 1e-3), (False, 1e-4))
"""What is left of both where float64 cannot be had."""
FLOOR = 1e-4
"""Curvature of which less is not looked at, in the natural units ‖∇f‖/‖x‖ and |f|/‖x‖²: rounding is as large."""

OUTPUTS = ("forward derivatives of the outputs are", "differences of outputs")
LOSS = ("derivatives of the loss in the outputs are", "differences of the loss")
LOSS_TWICE = ("second derivatives of the loss in the outputs are", "differences of its first")
FORMS = ("forward derivatives of the outputs are", "reverse ones")
"""What is compared, with what."""

UNCLEAR = "its derivatives could not be compared with differences, as {}"


class Comparison(ABC):
    """The comparison of one product Hv, a piece of the data after the other, by the differences that can be had."""

    def __init__(self, objective: Function, x: Tensor, v: Tensor, rungs: tuple[Rung, ...]) -> None:
        self.objective, self.x, self.v = objective, x, v
        self.wide = objective.wide()  # in float64; the objective itself where that cannot be had
        self.narrow = ""  # why there are no differences in float64; empty where there are
        # The differences that are worth trying: float64 is as good as float64.
        self.rungs = tuple(rung for rung in rungs if rung[0] or objective.dtype != torch.float64)
        self.length = length(v)
        self.unit = relative(x, v, 1.0)  # the c at which ‖cv‖ is ‖x‖, or √d/1000 where x is smaller

    @abstractmethod
    def see(self, b: int, piece: Piece, product: Callable[[], Tensor] | None) -> Tensor | None:
        """Compare piece number ``b``'s part of the product, where there is one, and give it."""

    @abstractmethod
    def verdict(self, again: Callable[[int], Tensor]) -> str:
        """Empty if all agrees, else why nothing can be said; InputError if torch's derivatives are not f's.

        ``again`` makes the product of a piece anew.
        """

    def _by_differences(self, compared: Callable[[], Found]) -> Found:
        """What a comparison gives; made once more, in float32, if float64 fails in it."""
        try:
            return compared()
        except InputError:
            raise
        except Exception as error:
            if self.narrow:
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
            self.narrow = f"module or loss take no float64 ({reason})"
            self.wide, self.rungs = self.objective, NARROW
            return compared()

    def _at(self, c: float, f: Function) -> Tensor:
        """The point x + cv, made in float64, for one of the two functions."""
        return add_(self.x.to(torch.float64, copy=True), self.v, c).to(f.dtype)

    def _refuse(self, what: str, beside: str, *orders: Order) -> NoReturn:
        """InputError that names the part whose derivatives are wrong; or noise, which would be the reason."""
        f = self.objective
        refuse(Trial(f, self.x).still(everywhere=True, times=4))
        with f.at(f.leaves(self.x)):
            blamed = culprit(f.module, f.measure, (mapped(f.place, piece.batch) for piece in f.pieces), orders)
        raise InputError(
            f"module and loss must have the derivatives that torch gives, got {what} from {beside}: is there a "
            "backward or jvp of your own, a hook, detach, or a part in training mode in between, or has f a kink at x "
            f"(ReLU of a 0)? Mend it, move x, or use what needs no derivatives (hessian.forward_only){blamed}"
        )


class HessianComparison(Comparison):
    """The comparison for Hv."""

    def __init__(self, objective: Function, x: Tensor, v: Tensor) -> None:
        super().__init__(objective, x, v, KINKED if objective.kinked else SMOOTH)
        self.off: dict[int, float] = {}  # how far each piece's part is from its difference
        self.size = 0.0  # ‖Hv‖, or more; not that of a difference, which a kink makes as large as the step is small
        self.slope = [0.0, 0.0]  # ∇fᵀv by gradients, and by values
        self.typical = 0.0  # what ∇fᵀv is for a random v
        self.trouble = ""

    def see(self, b: int, piece: Piece, product: Callable[[], Tensor] | None) -> Tensor:
        """See ``Comparison``. The product is made last, when the points of the difference are gone."""
        assert product is not None
        if not self.narrow and 6 * 8 * self.x.numel() > room(self.x.device):
            self.wide = self.objective
            self.narrow = "there is no room for it in float64"
            self.rungs = NARROW
        if self.trouble or 6 * self.x.element_size() * self.x.numel() > room(self.x.device):
            self.trouble = "there is no room for it"
            return product()
        return self._by_differences(partial(self._compare, b, piece, product))

    def _compare(self, b: int, piece: Piece, product: Callable[[], Tensor]) -> Tensor:
        """Note how far piece b's part of Hv, (d,), is from its first difference, and give it."""
        wide, step = self.rungs[0]
        c = step * self.unit
        # Gradients in float32 are so near to each other that nothing is lost where they are subtracted in it.
        difference = torch.zeros_like(self.x, dtype=torch.float64 if wide else None)
        high = self._add_end_(difference, piece, c, wide)
        gradient, rise = float(difference.norm()), self._along(difference)
        low = self._add_end_(difference, piece, -c, wide, -1.0)
        share, across, value = piece.share, self.unit * self.length, max(abs(high), abs(low))
        self.slope[0] += share * (rise - self._along(difference) / 2)  # the mean of both ends
        self.slope[1] += share * (high - low) / (2 * c)
        self.typical += share * gradient * self.length / self.v.numel() ** 0.5
        difference.div_(2 * c)
        part = product()
        least = FLOOR * self.length * (gradient / across + value / across**2)
        self.size += share * max(float(part.norm()), least)
        self.off[b] = share * float(add_(difference, part, -1.0).norm())
        return part

    def _along(self, g: Tensor) -> float:
        """vᵀg, by blocks in their own dtype that are summed in float64: enough to compare, and a tenth of ``inner``."""
        parts = zip(self.v.split(BLOCK), g.split(BLOCK), strict=True)
        return math.fsum(float((a * b).sum(dtype=torch.float64)) for a, b in parts)

    def verdict(self, again: Callable[[int], Tensor]) -> str:
        rounded = 0.0
        for b in sorted(self.off, key=self.off.__getitem__, reverse=True):
            if self.trouble or sum(self.off.values()) <= AGREES * self.size:
                break
            off, rounding = self._by_differences(partial(self._nearest, b, again(b)))
            self.off[b] = min(self.off[b], off)
            rounded += rounding
        missed, unclear = sum(self.off.values()), ""
        if not self.trouble and missed > AGREES * self.size:
            scatter = 0.0  # how far the differences of two steps are from each other, by rounding or by kinks
            for piece in self.objective.pieces if self.narrow else ():
                one, other = (self._difference(piece, *rung) for rung in NARROW)
                scatter += piece.share * float(add_(one, other, -1.0).norm())
            if self.narrow and scatter > missed / 2:
                # Rounding, or kinks; the values below still tell a wrong gradient.
                unclear = UNCLEAR.format(f"{self.narrow}, and those in float32 are too far from each other")
            elif not self.narrow and self.objective.kinked and _narrows(self.wide, self.x.double()):
                self.trouble = "the module computes in float32 whatever it is given, and has kinks"
            else:
                what = f"a product with the Hessian is {min(missed / self.size, 1):.0%} off"
                self._refuse(what, "differences of gradients", Order.FIRST, Order.SECOND)
        if self.trouble:
            return UNCLEAR.format(self.trouble)
        by_gradient, by_values = self.slope
        near = abs(by_gradient - by_values) <= AGREES * max(self.typical, abs(by_values))
        agrees = near or self._by_differences(self._has_slope)
        if self.narrow and self._rounding() > self.typical / 10:  # values tell nothing, either way
            return UNCLEAR.format(f"{self.narrow}, and float32 rounds those of values by as much as they are")
        if not agrees:
            what = f"∇fᵀv is {by_gradient:.3g} for {by_values:.3g}"
            self._refuse(what, "differences of values", Order.FIRST, Order.SECOND)
        if unclear:
            return unclear
        return f"{self.objective.dtype} rounds products by {rounded / self.size:.1%}" if rounded else ""

    def _nearest(self, b: int, product: Tensor) -> tuple[float, float]:
        """How far a piece's product is from the nearest of further differences, and by how much it is rounded.

        If the one in float64 is near, and only then, what is wrong with the other is its rounding.
        """
        piece, nearest = self.objective.pieces[b], math.inf
        enough = AGREES * piece.share * float(product.norm())
        exact: Tensor | None = None
        for wide, step in self.rungs[1:]:
            difference = self._difference(piece, wide, step)
            nearest = min(nearest, piece.share * float(add_(difference, product, -1.0).norm()))
            if nearest <= enough:
                break
            if not wide or self.objective.dtype == torch.float64:
                continue
            if exact is None:  # the piece's product in float64
                leaves = self.wide.leaves(self.x.double())
                exact = torch.zeros_like(self.x, dtype=torch.float64)
                self.wide.add_product_(exact, self.wide.slopes(leaves, piece), leaves, self.v.double(), 1.0)
            off = piece.share * float(add_(difference, product, 1.0).sub_(exact).norm())
            if off <= AGREES * piece.share * float(exact.norm()):
                return off, piece.share * float(add_(exact, product, -1.0).norm())
        return nearest, 0.0

    def _difference(self, piece: Piece, wide: bool, step: float) -> Tensor:
        """[∇f(x + cv) − ∇f(x − cv)]/(2c) of a piece, in float64."""
        difference, c = torch.zeros_like(self.x, dtype=torch.float64), step * self.unit
        for sign in (1.0, -1.0):
            self._add_end_(difference, piece, sign * c, wide, sign / (2 * c))
        return difference

    def _has_slope(self) -> bool:
        """Whether ∇fᵀv is what differences of values say, to the rounding that is there."""
        f = self.wide
        slope = sum(piece.share * f.piece_slope(self.x.to(f.dtype), piece, self.v) for piece in f.pieces)
        if is_slope(slope, self.typical, self._of_values):
            return True
        # A module that computes in float32 whatever it is given, as the loss of transformers, rounds away what differs
        # at the coarsest step. Rounding of a tenth of what ∇fᵀv typically is would hide a fault.
        if not self.narrow and not _narrows(self.wide, self.x.double()):
            return False
        off = abs(self._of_values(SLOPES[-1]) - slope)
        return off <= min(self._rounding(), self.typical / 10) + AGREES * max(self.typical, abs(slope))

    def _rounding(self) -> float:
        """By how much float32 rounds a difference of values at the coarsest step."""
        c, f = SLOPES[-1] * self.unit, self.objective
        value = sum(piece.share * f.piece_value(self.x, piece) for piece in f.pieces)
        return _ROUNDED * torch.finfo(torch.float32).eps * abs(value) / c

    def _add_end_(self, total: Tensor, piece: Piece, c: float, wide: bool, times: float = 1.0) -> float:
        """Add to ``total`` a multiple of the gradient of a piece at x + cv; returns the value there.

        What is computed in float64 goes through by halves, so that graphs stay as small as they were.
        """
        f = self.wide if wide else self.objective
        point = add_(self.x.to(f.dtype, copy=True), self.v, c)
        if f.dtype == self.objective.dtype or not f.may_be_cut:
            return float(f.add_gradient_(total, point, piece, times))
        value = 0.0
        for part in piece.cut((piece.examples + 1) // 2, f.weight_of):
            share = part.share / piece.share
            value += share * float(f.add_gradient_(total, point, part, times * share))
        return value

    def _of_values(self, step: float) -> float:
        """The difference of values of all pieces, without the penalty."""
        c, f = step * self.unit, self.wide
        high, low = (sum(piece.share * f.piece_value(self._at(end, f), piece) for piece in f.pieces) for end in (c, -c))
        return (high - low) / (2 * c)


class OutputComparison(Comparison):
    """The comparison for matrices JᵀMJ, by Jv, and by the derivatives of the loss in the outputs."""

    def __init__(
        self,
        objective: Function,
        x: Tensor,
        v: Tensor,
        along: Callable[[Piece, Tensor], tuple[Tensor, Tensor]],
        middle: Callable[[Tensor, Tensor, Piece], Tensor],
        *,
        second: bool,
    ) -> None:
        """A comparison at x, with v; ``along`` gives outputs and Jv of a piece, and ``middle`` MJv of these.

        M is the loss's ``second`` derivative, or else is made of its first.
        """
        super().__init__(objective, x, v, SMOOTH)
        self.along, self.middle, self.second = along, middle, second
        self.off: dict[tuple[str, str], float] = {}  # by what is compared with what
        self.size: dict[tuple[str, str], float] = {}

    def see(self, b: int, piece: Piece, product: Callable[[], Tensor] | None) -> Tensor | None:  # noqa: ARG002
        part = None if product is None else product()
        outputs, along = self.along(piece, self.v)
        middle = self.middle(outputs.clone(), along, piece)
        if part is not None:
            form = along.double().flatten() @ middle.double().flatten()
            self._add(FORMS, piece.share, form.new_tensor(inner(self.v, part)), form)
        self._by_differences(partial(self._compare, piece, outputs, along, middle))
        return part

    def _compare(self, piece: Piece, outputs: Tensor, along: Tensor, middle: Tensor) -> None:
        """Note how far Jv (``along``) and the loss's derivatives, MJv of them, are from differences; all like z."""

        def outputs_differ(wide: bool, step: float) -> Tensor:
            f = self.wide if wide else self.objective
            c = step * self.unit
            with torch.no_grad():
                up, down = (f.outputs(self._at(end, f), piece).double() for end in (c, -c))
            difference: Tensor = (up - down) / (2 * c)
            return difference

        # The loss's derivatives in the outputs z beside its differences, by the nearest of ``SLOPES``. The coarser
        # steps are for losses that compute in float32 whatever they are given, as those of transformers do.
        z, way = outputs.to(self.wide.dtype), along.to(self.wide.dtype)

        @cache
        def loss_differs(step: float) -> tuple[Tensor, Tensor]:
            h = relative(z.flatten(), way.flatten(), step) if float(way.norm()) else 1.0
            (high, up), (low, down) = (self._loss_at(z + sign * h * way, piece) for sign in (1, -1))
            return (high - low) / (2 * h), (up - down) / (2 * h)

        along_by_differences = _nearest(along, (outputs_differ(*rung) for rung in self.rungs))
        slope = (self._loss_at(z, piece)[1] * way).sum()
        self._add(LOSS, piece.share, slope, _nearest(slope, (loss_differs(step)[0] for step in SLOPES)))
        if self.second:
            self._add(LOSS_TWICE, piece.share, middle, _nearest(middle, (loss_differs(step)[1] for step in SLOPES)))
        self._add(OUTPUTS, piece.share, along, along_by_differences)

    def _loss_at(self, z: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        """The loss of outputs z of a piece, in float64, and its derivative by them."""
        z = z.detach().requires_grad_()
        loss = self.wide.loss_of(z, piece)
        (slope,) = torch.autograd.grad(loss, z)
        return loss.detach(), slope

    def _add(self, kind: tuple[str, str], share: float, derivative: Tensor, difference: Tensor) -> None:
        a, b = derivative.double(), difference.double()
        self.off[kind] = self.off.get(kind, 0.0) + share * float((a - b).norm())
        self.size[kind] = self.size.get(kind, 0.0) + share * max(float(a.norm()), float(b.norm()))

    def verdict(self, again: Callable[[int], Tensor]) -> str:  # noqa: ARG002
        for (compared, beside), off in self.off.items():
            size = self.size[compared, beside]
            if off > AGREES * size:
                self._refuse(f"{compared} {off / size:.0%} off", beside, Order.FORWARD, Order.FIRST, Order.SECOND)
        return ""


def _nearest(derivative: Tensor, differences: Iterable[Tensor]) -> Tensor:
    """The first difference that is the derivative, to ``AGREES``; else the one that is nearest to it."""
    tried: list[tuple[float, Tensor]] = []
    for difference in differences:
        off = float((difference - derivative).norm())
        if off <= AGREES * float(derivative.norm()):
            return difference
        tried.append((off, difference))
    return min(tried, key=lambda pair: pair[0])[1]


class _Narrow(Calls):
    """Inside, it is seen whether something in less than float64 is made of something in float64."""

    seen = False

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        wide = any(t.dtype == torch.float64 for t in tensors(args))
        less = any(t.is_floating_point() and t.dtype != torch.float64 for t in tensors(result))
        self.seen = self.seen or (wide and less)
        return result


def _narrows(wide: Function, x: Tensor) -> bool:
    with _Narrow() as mode:
        wide.piece_value(x, wide.pieces[0])
    return bool(mode.seen)
