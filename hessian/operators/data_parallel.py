"""One operator over several processes or GPUs, each with a part of the data."""

import torch
import torch.distributed as dist
from torch import Tensor

from decomfl_lab.errors import require, require_finite_positive
from hessian.operators.operator import Around, Operator, digest


class DataParallelOperator(Around):
    """H = Σ_r w_r H_r / Σ_r w_r, over the processes r of a ``torch.distributed`` group.

    Each process makes one from the operator H_r of its own part of the data, and all of them call the same methods in
    the same order with the same vectors: probes and Lanczos vectors are functions of seeds and products, so every
    process holds them without sending any. A product travels once, as one sum of d numbers, and has the same bits
    everywhere.
    """

    def __init__(self, operator: Operator, *, weight: float, group: dist.ProcessGroup | None = None) -> None:
        """Join the process group, by default the whole world; every process of it has to.

        H_r = ``operator`` has the same dimension and dtype in every process; its weight w_r > 0 is the number of
        examples of this process's part (``MeanLoss.weight``).

        Raises:
            InputError: If torch.distributed is not initialised, the weight is not above 0, or the processes'
                operators are of different kind, dimension or dtype.
        """
        require(dist.is_initialized(), "torch.distributed", "be initialised (init_process_group)", "no process group")
        require_finite_positive("weight", weight)
        super().__init__(operator)
        self.group = group
        # Every process's part, by rank.
        part = (self.name, self.d, str(self.dtype), float(weight), operator.fingerprint())
        parts: list[tuple[str, int, str, float, str]] = [part] * dist.get_world_size(self.group)
        dist.all_gather_object(parts, part, group=self.group)
        kinds = {part[:3] for part in parts}
        require(len(kinds) == 1, "operators of all processes", "have one name, dimension and dtype", sorted(kinds))
        self.share = weight / sum(part[3] for part in parts)
        self._fingerprint = digest(repr(parts))

    def matvec(self, v: Tensor) -> Tensor:
        product = self.inner.matvec(v).mul_(self.share)
        dist.all_reduce(product, group=self.group)
        return product

    def quad(self, v: Tensor) -> float:
        form = torch.tensor(self.share * self.inner.quad(v), dtype=torch.float64, device=self.device)
        dist.all_reduce(form, group=self.group)
        return float(form)

    def fingerprint(self) -> str:
        """See ``Operator``: of all parts, and so the same in every process."""
        return self._fingerprint
