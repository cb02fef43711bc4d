"""Cross-entropy over many classes, as over a vocabulary, whose derivatives are recomputed instead of stored.

    ℓ_i = log Σ_c exp(z_ic) − z_iy,    ∂ℓ_i/∂z_i = p_i − e_y,    (∂²ℓ_i/∂z_i²) u = p_i ⊙ (u − ⟨p_i, u⟩)

Of the logits z of n tokens torch keeps the logarithms of p, their slopes and several products of these for a second
derivative, n × C elements each, 100 MB for 512 tokens of a vocabulary of 49,152. Here z alone is kept, with one number
a token, and p is made again from them, some rows at a time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import cross_entropy

from decomfl_lab.objectives.trials.needs import Calls

LARGE = 1 << 22  # logits from which on derivatives are recomputed
_BLOCK = 1 << 20  # logits whose p is made at a time


class LeanCrossEntropy(Calls):
    """Inside, torch's cross-entropy of ``LARGE`` logits is this module's: by numbers of classes, unweighted."""

    seen = False  # whether there was one

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is cross_entropy:
            losses = _lean(*args, **kwargs)
            if losses is not None:
                self.seen = True
                return losses
        return func(*args, **kwargs)


def _lean(
    input: Tensor,  # noqa: A002 (torch's name)
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """The loss as torch has it; None where it is small, or another than this module's."""
    plain = not label_smoothing and all(option is None for option in (weight, size_average, reduce))
    classes = input.ndim > 1 and target.dtype == torch.int64 and target.ndim == input.ndim - 1
    # torch.func's transforms, which a user's loss may be inside of, ask for more than a plain Function has.
    if not (plain and classes) or input.numel() < LARGE or torch._C._are_functorch_transforms_active():
        return None
    counted = target != ignore_index
    z = input.movedim(1, -1).reshape(-1, input.shape[1])
    losses: Tensor = _Losses.apply(z, target.where(counted, 0).reshape(-1))  # type: ignore[no-untyped-call]
    losses = losses.view(target.shape) * counted
    if reduction == "none":
        return losses
    return losses.sum() / counted.sum() if reduction == "mean" else losses.sum()


def _blocks(*tensors: Tensor) -> Any:
    """The tensors, whose first has n × C elements, some rows at a time."""
    count = max(1, _BLOCK // tensors[0].shape[1])
    return zip(*(tensor.split(count) for tensor in tensors), strict=True)


class _Losses(Function):
    """ℓ (n,) of logits z (n, C) and classes y (n,), int64."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor) -> Tensor:
        total = torch.cat([block.logsumexp(1) for (block,) in _blocks(z)])
        ctx.save_for_backward(z, y, total)
        return total - z.gather(1, y[:, None])[:, 0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        z, y, total = ctx.saved_tensors
        return _Slopes.apply(z, g, y, total), None  # type: ignore[no-untyped-call]


class _Slopes(Function):
    """g ⊙ ∂ℓ/∂z, (n, C), with g (n,) the slopes of what ℓ goes into, and total (n,) = log Σ_c exp(z_c)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, g: Tensor, y: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(z, g, y, total)
        slopes = torch.empty_like(z)
        for into, z_, g_, y_, total_ in _blocks(slopes, z, g, y, total):
            p = (z_ - total_[:, None]).exp_()
            into.copy_(p).scatter_add_(1, y_[:, None], -torch.ones_like(g_)[:, None])
            into.mul_(g_[:, None])
        return slopes

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor, None, None]:
        z, g, y, total = ctx.saved_tensors
        of_z, of_g = torch.empty_like(z), torch.empty_like(g)  # what u (n, C) gives back, by the module's formula
        for of_z_, of_g_, u_, z_, g_, y_, total_ in _blocks(of_z, of_g, u, z, g, y, total):
            p = (z_ - total_[:, None]).exp_()
            mean = (p * u_).sum(1)
            of_g_.copy_(mean - u_.gather(1, y_[:, None])[:, 0])
            torch.mul(p.mul_(u_ - mean[:, None]), g_[:, None], out=of_z_)
        return of_z, of_g, None, None
