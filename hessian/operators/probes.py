"""Random probe vectors from the lab's noise stream: pure functions of (seed, stage, index), so runs resume exactly."""

import torch
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.noise import Distribution, Program, derive_seed
from decomfl_lab.replicas.rebuild import rebuild_
from hessian.operators.operator import Operator


def probe(
    space: Operator | Tensor, seed: int, stage: int, index: int, distribution: Distribution = Distribution.GAUSSIAN
) -> Tensor:
    """Probe number ``index`` of a stage, shape (d,); its bits are the same on every device.

    Args:
        space: The operator whose space the probe is in, or a point x (d,) of it: the probe has its dtype and device.
        seed: The seed of the estimate, 0..2**64-1.
        stage: The purpose (start of Lanczos, trace, density ...): probes of different stages are independent.
        index: The number of the probe, from 0 on.
        distribution: The distribution of the stream.
    """
    d = space.numel() if isinstance(space, Tensor) else space.d
    return _made(d, space.dtype, space.device, seed, stage, index, distribution)


def _made(
    d: int, dtype: torch.dtype, device: torch.device, seed: int, stage: int, index: int, distribution: Distribution
) -> Tensor:
    """The direction, made where it stays, as -0 + z is z to the bit; a copy of it where the stream has no kernel."""
    native = device.type == "cpu" or (device.type == "cuda" and "triton" in noise.available_backends())
    z = torch.full((d,), -0.0, dtype=dtype, device=device if native else "cpu")
    program = Program(["z"])
    program.noise("z", derive_seed(seed, stage), [1.0], distribution, index)
    rebuild_(program, [{"z": z}])
    return z.to(device)
