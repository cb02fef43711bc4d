"""Random probe vectors from the lab's noise stream: pure functions of (seed, stage, index), so runs resume exactly."""

import torch
from torch import Tensor

from decomfl_lab import noise
from decomfl_lab.noise import Distribution, Program, derive_seed
from decomfl_lab.replicas.rebuild import rebuild_
from hessian.operators.operator import Operator


def probe(operator: Operator, seed: int, stage: int, index: int) -> Tensor:
    """Gaussian probe number ``index`` of a stage, in the operator's dtype and on its device, shape (d,).

    Args:
        operator: The operator whose space the probe is in.
        seed: The seed of the estimate, 0..2**64-1.
        stage: The purpose (start of Lanczos, trace, density ...): probes of different stages are independent.
        index: The number of the probe, from 0 on.
    """
    return _made(operator.d, operator.dtype, operator.device, seed, stage, index, Distribution.GAUSSIAN)


def probe_at(
    x: Tensor, seed: int, stage: int, index: int, distribution: Distribution = Distribution.GAUSSIAN
) -> Tensor:
    """The same for whoever has a point x (d,) and no operator; in its dtype, on its device, of any distribution."""
    return _made(x.numel(), x.dtype, x.device, seed, stage, index, distribution)


def _made(
    d: int, dtype: torch.dtype, device: torch.device, seed: int, stage: int, index: int, distribution: Distribution
) -> Tensor:
    """The direction, made where it stays: -0 + z is z to the bit. Devices that the stream has no kernel for get a copy.

    The bits are the same on every device.
    """
    native = device.type == "cpu" or (device.type == "cuda" and "triton" in noise.available_backends())
    z = torch.full((d,), -0.0, dtype=dtype, device=device if native else "cpu")
    program = Program(["z"])
    program.noise("z", derive_seed(seed, stage), [1.0], distribution, index)
    rebuild_(program, [{"z": z}])
    return z.to(device)
