"""How initial weights are drawn from the lab's own stream (``noise.starts``), layer by layer.

A layer that says nothing begins as torch's default has it, uniform with the bound 1/√fan, where ``fan`` is how many
inputs an output hangs on. torch's initialisers have the same formulas, but draw numbers whose bits depend on the
processor's instructions.

Source: He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.
"""

import math
from functools import partial

import torch
from torch import nn

from decomfl_lab.errors import InputError
from decomfl_lab.noise.starts import Start

_STARTS = "starts"
"""The attribute of a module that says how its own parameters begin, where that is not torch's default."""


constant = partial(Start, "constant")
"""Every element is this number."""
uniform = partial(Start, "uniform")
"""U(−bound, bound), by the bound."""
normal = partial(Start, "normal")
"""N(0, deviation²), by the deviation."""


def begin_(module: nn.Module, **starts: Start) -> None:
    """Say how parameters of this module begin, by their names in it."""
    module.__dict__.setdefault(_STARTS, {}).update(starts)


def starts_of(module: nn.Module) -> tuple[Start, ...]:
    """How each trainable parameter begins, in the order of x; InputError if its layer says nothing that is known."""
    found: list[Start] = []
    for path in [path for path, p in module.named_parameters() if p.requires_grad]:
        prefix, _, name = path.rpartition(".")
        owner = module.get_submodule(prefix)
        said: dict[str, Start] = owner.__dict__.get(_STARTS, {})
        if name in said:
            found.append(said[name])
        elif isinstance(owner, nn.Linear | nn.Conv2d):
            # The default of weight and bias is Kaiming's bound gain·√(3/fan), with the gain 1/√3. Sizes are asked of
            # the layer, since the weight of a run's module may be empty between two uses.
            fan = owner.in_features if isinstance(owner, nn.Linear) else owner.in_channels // owner.groups
            fan *= math.prod(getattr(owner, "kernel_size", ()))
            found.append(uniform(1 / math.sqrt(3) * math.sqrt(3 / fan)))
        elif isinstance(owner, nn.BatchNorm2d | nn.LayerNorm):
            found.append(constant(1.0 if name == "weight" else 0.0))
        else:
            rule = "be said (models.initialisers.begin_)"
            raise InputError(f"start of parameter {path} must {rule}, got a {type(owner).__name__}")
    return tuple(found)


@torch.no_grad()
def draw_(module: nn.Module, seed: int) -> None:
    """Give every trainable parameter its initial elements: tensor t of x from the key ``seed``, in any dtype."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for t, (p, start) in enumerate(zip(parameters, starts_of(module), strict=True)):
        p.copy_(torch.from_numpy(start.elements(seed, t, p.numel())).view(p.shape))
