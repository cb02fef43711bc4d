"""Weights by name, without an architecture: what the log of an optimizer (``decomfl_lab.optim``) is replayed on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.files import require_plain
from decomfl_lab.objectives.modules import copied
from decomfl_lab.outside import NamedTensor
from decomfl_lab.replicas.replica import Replica


def with_weights(tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module that holds these tensors under these names, and can do nothing else."""
    module = nn.Module()
    # Not by register_parameter, which takes no name with dots.
    module._parameters.update({name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()})
    return module


def read_weights(path: Path) -> nn.Module:
    """The weights in a file of safetensors; InputError if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return with_weights(load(require_plain(path).read_bytes()))
    except OSError as error:
        raise InputError(f"start must be a file that can be read, got {path} ({error.strerror})") from None
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise InputError(f"start must be weights as safetensors, got {path} ({error})") from None


def _places(module: nn.Module, tensors: Sequence[NamedTensor]) -> list[nn.Parameter]:
    """The module's parameters that the log is of, in its order.

    Raises:
        InputError: If a name or a shape is another; where the log has no names the trainable parameters are taken.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    if any(own.name for own in tensors):
        for own in tensors:
            require(own.name in known, "weights at x_0", f"have the parameter {own.name!r} of the log", list(known))
        found = [known[own.name] for own in tensors]
    else:
        found = [p for p in module.parameters() if p.requires_grad]
        rule = f"have the {len(tensors)} trainable parameters of the log, which has no names of them"
        require(len(found) == len(tensors), "model at x_0", rule, len(found))
    for own, p in zip(tensors, found, strict=True):
        require(tuple(p.shape) == own.shape, f"shape of {own.name!r} at x_0", f"be {own.shape}", tuple(p.shape))
    return found


def flattened(module: nn.Module, tensors: Sequence[NamedTensor]) -> Tensor:
    """x, shape (d,), of the module's parameters that the log is of; InputError where they do not fit it."""
    found = _places(module, tensors)
    kinds = sorted({str(p.dtype) for p in found})
    require(len(kinds) == 1 and found[0].is_floating_point(), "dtype of the weights at x_0", "be one for all", kinds)
    return torch.cat([p.detach().reshape(-1) for p in found])


def written_back(module: nn.Module | None, tensors: Sequence[NamedTensor], replica: Replica) -> nn.Module:
    """A copy of the module with the replica's x in the parameters that the log is of; without one the weights alone."""
    shapes = [own.shape for own in tensors]
    parts = [part.view(shape) for part, shape in zip(replica.x.split(replica.sizes), shapes, strict=True)]
    if module is None:
        return with_weights(
            {own.name or str(n): part for n, (own, part) in enumerate(zip(tensors, parts, strict=True))}
        )
    module = copied(module)
    for p, part in zip(_places(module, tensors), parts, strict=True):
        p.data = part.to(p.device)
    return module
