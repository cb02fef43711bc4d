"""Whether torch's derivatives are f's: the first product of an operator beside differences, over all the data.

    H v    against    [∇f(x + cv) − ∇f(x − cv)]/(2c),    and  ∇f(x)ᵀv  against  [f(x + cv) − f(x − cv)]/(2c)
    J v    against    [z(x + cv) − z(x − cv)]/(2c),      z the module's outputs, and likewise for the loss's derivatives

Differences are taken in float64, whatever the product was computed in, so that steps can be small: two gradients, or
two evaluations, in all. A backward that is another function's, a hook or a ``detach`` in between makes them differ by
tens of per cent. Rounding in float32 leaves 1e-4. Kinks (ReLU, max-pooling) are no fault: a gradient jumps where a step
crosses one, by much more than Hv where the step is small; but small steps cross few, so that pieces of the data with a
jump are tried again with smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from decomfl_lab.devices import room
from decomfl_lab.errors import InputError
from decomfl_lab.objectives.checks import AGREES, SLOPES, is_slope, relative
from decomfl_lab.objectives.trees import tensors

if TYPE_CHECKING:
    from hessian.mean_loss import MeanLoss, Piece

__all__ = ["HessianTrial", "OutputTrial", "Trial"]

SMOOTH = SLOPES
"""Steps relative to ‖x‖; the coarser ones are for modules that compute in float32 whatever they are given."""
KINKED = (1e-9, 1e-10, 1e-11)
"""The same where there are kinks."""
FLOOR = 1e-4
"""Curvature of which less is not looked at, in the natural units ‖∇f‖/‖x‖ and |f|/‖x‖²: rounding is as large."""

OUTPUTS = ("forward derivatives of the outputs are", "differences of outputs")
LOSS = ("derivatives of the loss in the outputs are", "differences of the loss")
LOSS_TWICE = ("second derivatives of the loss in the outputs are", "differences of its first")
FORMS = ("forward derivatives of the outputs are", "reverse ones")
"""What is compared, with what."""

UNCLEAR = "its derivatives could not be compared with differences, as {}"


class Trial(Protocol):
    """The comparison of one product Hv; a piece of the data after the other."""

    def see(self, b: int, piece: Piece, product: Tensor | None) -> None:
        """Compare piece number ``b``'s part of the product, where there is one."""

    def verdict(self, again: Callable[[int], Tensor]) -> str:
        """Empty if all agrees, else why nothing can be said.

        Args:
            again: It makes the product of a piece anew.

        Raises:
            InputError: If torch's derivatives are not f's.
        """


class HessianTrial:
    """The comparison for Hv."""

    def __init__(self, objective: MeanLoss, x: Tensor, v: Tensor) -> None:
        self.objective, self.wide = objective, objective.wide()
        self.x, self.v = x, v
        self.steps = KINKED if objective.kinked else SMOOTH
        self.off: dict[int, float] = {}  # how far each piece's part is from its difference
        self.size = 0.0  # ‖Hv‖, or more
        self.slope = [0.0, 0.0]  # ∇fᵀv by gradients, and by values
        self.typical = self.noise = 0.0  # what ∇fᵀv is for a random v, and how far rounding moves its difference
        self.trouble = ""

    def see(self, b: int, piece: Piece, product: Tensor | None) -> None:
        """See ``Trial``."""
        assert product is not None
        if self.trouble:
            return
        if 6 * 8 * self.x.numel() > room(self.x.device):
            self.trouble = "there is no room for it in float64"
            return
        length, step = float(self.v.double().norm()), self.steps[0]
        c = relative(self.x, self.v, step)
        try:
            up, high = self._end(piece, c)
            down, low = self._end(piece, -c)
        except InputError:
            raise
        except Exception as error:  # a module that takes no float64
            self.trouble = f"the module takes no float64 ({type(error).__name__})"
            return
        share, across, value = piece.share, c * length / step, max(abs(high), abs(low))
        gradient = float(up.norm())
        self.slope[0] += share * sum(float(self.v.double() @ end) for end in (up, down)) / 2
        self.slope[1] += share * (high - low) / (2 * c)
        self.typical += share * gradient * length / self.v.numel() ** 0.5
        self.noise += share * 8 * torch.finfo(torch.float64).eps * value / c
        found = up.sub_(down).div_(2 * c)
        least = FLOOR * length * (gradient / across + value / across**2)
        self.size += share * max(float(found.norm()), float(product.norm()), least)
        self.off[b] = share * float(found.sub_(product).norm())

    def verdict(self, again: Callable[[int], Tensor]) -> str:
        """See ``Trial``."""
        pieces = self.objective.pieces
        for b in sorted(self.off, key=self.off.__getitem__, reverse=True):
            if self.trouble or sum(self.off.values()) <= AGREES * self.size:
                break
            product = again(b)
            for step in self.steps[1:]:
                c = relative(self.x, self.v, step)
                up, down = self._end(pieces[b], c)[0], self._end(pieces[b], -c)[0]
                found = up.sub_(down).div_(2 * c).sub_(product)
                self.off[b] = min(self.off[b], pieces[b].share * float(found.norm()))
        missed = sum(self.off.values())
        if not self.trouble and missed > AGREES * self.size:
            if self.objective.kinked and _narrows(self.wide, self.x.double()):
                self.trouble = "the module computes in float32 whatever it is given, and has kinks"
            else:
                what = f"a product with the Hessian is {missed / self.size:.0%} off"
                raise self._refusal(what, "differences of gradients")
        if self.trouble:
            return UNCLEAR.format(self.trouble)
        by_gradient, by_values = self.slope
        close = abs(by_gradient - by_values) <= AGREES * max(self.typical, abs(by_values)) + self.noise
        if not close and not is_slope(by_gradient, self.typical, self._of_values):
            raise self._refusal(f"∇fᵀv is {by_gradient:.3g} for {by_values:.3g}", "differences of values")
        return ""

    def _refusal(self, what: str, beside: str) -> InputError:
        self.objective.require_same()  # noise would be the reason
        return _refusal(what, beside, self.objective)

    def _at(self, c: float) -> Tensor:
        """The point x + cv in float64."""
        return self.x.to(torch.float64, copy=True).add_(self.v, alpha=c)

    def _end(self, piece: Piece, c: float) -> tuple[Tensor, float]:
        """Gradient and value of a piece at x + cv, in float64; by halves, so that graphs stay small."""
        leaf = self._at(c).requires_grad_()
        if not self.wide.may_be_cut or self.objective.dtype == torch.float64:
            gradient, loss = self.wide.piece_slope(leaf, piece)
            return gradient, float(loss)
        total, value = torch.zeros_like(leaf), 0.0
        for part in piece.cut((piece.examples + 1) // 2, self.wide.weigh):
            gradient, loss = self.wide.piece_slope(leaf, part)
            total.add_(gradient, alpha=part.share / piece.share)
            value += part.share / piece.share * float(loss)
        return total, value

    def _of_values(self, step: float) -> float:
        """The difference of values of all pieces, without the penalty."""
        c = relative(self.x, self.v, step)
        ends = [
            sum(piece.share * self.wide.piece_value(self._at(end), piece) for piece in self.wide.pieces)
            for end in (c, -c)
        ]
        return (ends[0] - ends[1]) / (2 * c)


class OutputTrial:
    """The comparison for matrices JᵀMJ, by Jv, and by the derivatives of the loss in the outputs."""

    def __init__(
        self,
        objective: MeanLoss,
        x: Tensor,
        v: Tensor,
        along: Callable[[Piece, Tensor], tuple[Tensor, Tensor]],
        middle: Callable[[Tensor, Tensor, Piece], Tensor],
        *,
        second: bool,
    ) -> None:
        """A comparison.

        Args:
            objective: The mean loss.
            x: The point.
            v: The vector.
            along: It gives outputs and Jv of a piece.
            middle: It gives MJv of outputs and Jv.
            second: Whether M is the loss's second derivative, and not made of its first.
        """
        self.wide, self.own, self.x, self.v = objective.wide(), v, x.double(), v.double()
        self.along, self.middle, self.second = along, middle, second
        self.off: dict[tuple[str, str], float] = {}  # by what is compared with what
        self.size: dict[tuple[str, str], float] = {}
        self.trouble = ""

    def see(self, b: int, piece: Piece, product: Tensor | None) -> None:  # noqa: ARG002
        """See ``Trial``."""
        outputs, along = self.along(piece, self.own)
        middle = self.middle(outputs.clone(), along, piece)
        if product is not None:
            form = along.double().flatten() @ middle.double().flatten()
            self._add(FORMS, piece.share, self.own.double() @ product.double(), form)
        try:
            self._add(OUTPUTS, piece.share, along, self._of_outputs(piece, along))
            z, a = outputs.double(), along.double()
            h = relative(z.flatten(), a.flatten(), SMOOTH[0]) if float(a.norm()) else 1.0
            (high, up), (_, here), (low, down) = (self._loss_at(z + sign * h * a, piece) for sign in (1, 0, -1))
            self._add(LOSS, piece.share, (here * a).sum(), (high - low) / (2 * h))
            if self.second:
                self._add(LOSS_TWICE, piece.share, middle, (up - down) / (2 * h))
        except InputError:
            raise
        except Exception as error:  # a module that takes no float64
            self.trouble = f"the module takes no float64 ({type(error).__name__})"

    def _of_outputs(self, piece: Piece, along: Tensor) -> Tensor:
        """The difference of outputs, at the step at which it is nearest to Jv."""
        found: list[Tensor] = []
        for step in SMOOTH:
            c = relative(self.x, self.v, step)
            with torch.no_grad():
                up, down = (self.wide.outputs(self.x + sign * c * self.v, piece) for sign in (1, -1))
            found.append((up - down) / (2 * c))
            if float((found[-1] - along).norm()) <= AGREES * float(along.norm()):
                break
        return min(found, key=lambda each: float((each - along).norm()))

    def _loss_at(self, z: Tensor, piece: Piece) -> tuple[Tensor, Tensor]:
        """The loss of outputs, and its derivative."""
        at = z.detach().requires_grad_()
        loss = self.wide.loss_of(at, piece)
        (slope,) = torch.autograd.grad(loss, at)
        return loss.detach(), slope

    def _add(self, kind: tuple[str, str], share: float, own: Tensor, other: Tensor) -> None:
        a, b = own.double(), other.double()
        self.off[kind] = self.off.get(kind, 0.0) + share * float((a - b).norm())
        self.size[kind] = self.size.get(kind, 0.0) + share * max(float(a.norm()), float(b.norm()))

    def verdict(self, again: Callable[[int], Tensor]) -> str:  # noqa: ARG002
        """See ``Trial``."""
        for kind, off in self.off.items():
            if off > AGREES * self.size[kind]:
                raise _refusal(f"{kind[0]} {off / self.size[kind]:.0%} off", kind[1], self.wide)
        return UNCLEAR.format(self.trouble) if self.trouble else ""


class _Narrow(TorchFunctionMode):
    """Inside, it is seen whether something in less than float64 is made of something in float64."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        wide = any(t.dtype == torch.float64 for t in tensors(args))
        less = any(t.is_floating_point() and t.dtype != torch.float64 for t in tensors(result))
        self.seen = self.seen or (wide and less)
        return result


def _narrows(wide: MeanLoss, x: Tensor) -> bool:
    with _Narrow() as mode:
        wide.piece_value(x, wide.pieces[0])
    return bool(mode.seen)


def _refusal(what: str, beside: str, objective: MeanLoss) -> InputError:
    reason = "is there a backward or jvp of your own, a hook, detach, or a part in training mode in between?"
    if objective.padded:
        reason = "functional.embedding leaves its padding row out of the derivative: use nn.Embedding(padding_idx=...)."
    return InputError(
        f"module and loss must have the derivatives that torch gives, got {what} from {beside}: {reason} Mend it, or "
        "use what needs no derivatives (hessian.forward_only)"
    )
