"""Where each parameter of a module lies in the flat vector x."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require

ALIGNMENT = 64  # bytes at whose multiples vectors begin, as torch's do: that decides the last bits of sums

MODULE = "be a torch.nn.Module (of a fitted net of skorch its module_)"


def require_trainable(module: nn.Module) -> None:
    """InputError that says why, where a module has no trainable parameters."""
    parameters = list(module.parameters())
    lack = "all of them frozen (requires_grad=False)" if parameters else "none at all"
    holds = any(p.requires_grad for p in parameters)
    if not holds:
        raise InputError(f"module must have trainable parameters, got a {type(module).__name__} with {lack}")


def vector_of(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """The vector (d,) that all parameters are views of, one after another, as ``Layout.bind`` leaves them; else None.

    It is a view of their memory, too: what is written to them is written to it.
    """
    first = parameters[0].detach()
    if first.layout != torch.strided or first.is_inference() or first.data_ptr() % ALIGNMENT:
        return None
    storage, start = first.untyped_storage().data_ptr(), first.storage_offset()
    end = start
    for p in parameters:
        plain = p.dtype == dtype and p.layout == torch.strided and p.is_contiguous() and p.numel() > 0
        if not plain or p.untyped_storage().data_ptr() != storage or p.storage_offset() != end:
            return None
        end += p.numel()
    return first.as_strided((end - start,), (1,), start)


@dataclass(frozen=True)
class Layout:
    """Where each trainable tensor of a module lies in the flat vector x (parameters in the module's order)."""

    names: tuple[str, ...]  # parameter names; tied weights once
    shapes: tuple[torch.Size, ...]  # their shapes
    dtype: torch.dtype  # the one dtype of all, float32 or float64

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """The layout of the module's trainable parameters; InputError if there are none or dtypes differ."""
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        require_trainable(module)
        dtypes = {p.dtype for _, p in named}
        require(
            len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64},
            "dtype of the parameters",
            "be float32 for all or float64 for all (module.float() casts them)",
            sorted(map(str, dtypes)),
        )
        return cls(tuple(n for n, _ in named), tuple(p.shape for _, p in named), dtypes.pop())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each tensor."""
        return tuple(shape.numel() for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of trainable parameters."""
        return sum(self.sizes)

    def flatten(self, module: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one vector of shape (d,)."""
        return torch.cat([module.get_parameter(name).detach().reshape(-1) for name in self.names])

    def named(self, x: Tensor) -> dict[str, Tensor]:
        """The parts of a vector (d,) by the names of the parameters, in their shapes: views."""
        parts = zip(self.names, self.shapes, x.split(self.sizes), strict=True)
        return {name: part.view(shape) for name, shape, part in parts}

    def bind(self, module: nn.Module, x: Tensor) -> None:
        """Make the module's parameters views of x: what is written to x is the module's from now on."""
        if module.get_parameter(self.names[0]).data_ptr() == x.data_ptr():
            return  # views of x already: a view keeps its memory, so no other vector can have this address
        for name, part in self.named(x).items():
            module.get_parameter(name).data = part
