"""Three ways to be exactly where one was after a measurement. Each passes the laws of ``update``; copy what suits.

x + μz − 2μz + μz is not x: every sum is rounded. What is needed to put x back:

    way         memory beside x              time                               where x + s·z is
    Copied      as much as x                 a copy of x a measurement          in the parameters
    Replayed    x_0, wherever there is room  as many updates as there were      in the parameters
    Functional  one tensor at a time         nothing                            where the module is called

Noise is of numpy's Philox generator, whose key is the whole seed and which nobody else uses. In 16 bits x + s·z is
formed in float32 and rounded once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call


class _Step:
    """The trainable parameters of a module, and the noise of a seed for each of them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.x = {name: w for name, w in module.named_parameters() if w.requires_grad}
        self.seed, self.s = 0, 0.0  # where x is: at x + s·z(seed)

    def noise(self, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each name and parameter, and its part of z(seed)."""
        generator = np.random.Generator(np.random.Philox(key=seed))
        for name, w in self.x.items():
            z = torch.from_numpy(generator.standard_normal(tuple(w.shape), dtype=np.float32))
            yield name, w, z.to(w.device)

    @torch.no_grad()
    def add(self, seed: int, c: float) -> None:
        """In place x ← x + c·z(seed)."""
        for _, w, z in self.noise(seed):
            w.copy_(w.to(z.dtype) + c * z)

    def update(self, seed: int, g: float, lr: float) -> None:
        """In place x ← x − lr·g·z(seed)."""
        self.add(seed, -lr * g)

    def _moves(self, seed: int, s: float) -> None:
        if self.s and seed != self.seed:
            raise ValueError(f"x must be put back from seed {self.seed} first, got seed {seed}")
        self.seed, self.s = seed, self.s + s


class Copied(_Step):
    """A copy of x is kept from the first perturbation on, and put back."""

    kept: dict[str, Tensor]

    def perturb(self, seed: int, s: float) -> None:
        """In place x ← x + s·z(seed)."""
        if not self.s:
            self.kept = {name: w.detach().clone() for name, w in self.x.items()}
        self._moves(seed, s)
        with torch.no_grad():
            for name, w, z in self.noise(seed):
                start = self.kept[name]
                w.copy_(start.to(z.dtype) + self.s * z if self.s else start)
        if not self.s:
            del self.kept


class Replayed(_Step):
    """x is made again from x_0 and the record of all updates, as who follows them has it."""

    def __init__(self, module: nn.Module, record: Sequence[tuple[int, float, float]] = ()) -> None:
        super().__init__(module)
        self.start = {name: w.detach().cpu().clone() for name, w in self.x.items()}  # or in a file
        self.record = list(record)

    def perturb(self, seed: int, s: float) -> None:
        """In place x ← x + s·z(seed)."""
        self._moves(seed, s)
        if self.s:
            self.add(seed, s)
            return
        with torch.no_grad():
            for name, w in self.x.items():
                w.copy_(self.start[name])
        for update in self.record:
            super().update(*update)

    def update(self, seed: int, g: float, lr: float) -> None:
        """In place x ← x − lr·g·z(seed), which is recorded."""
        super().update(seed, g, lr)
        self.record.append((seed, g, lr))

    def log(self) -> list[tuple[int, float, float]]:
        """The record: a seed, g and lr an update."""
        return self.record

    def replay(self, record: Sequence[tuple[int, float, float]]) -> None:
        """The updates of a record."""
        for update in record:
            self.update(*update)


class Functional(_Step):
    """No parameter is written: the module is called with x + s·z in their place."""

    def perturb(self, seed: int, s: float) -> None:
        """The module is called with x + s·z(seed) from now on."""
        self._moves(seed, s)

    def weights(self) -> dict[str, Tensor]:
        """What the module is called with; a tensor at a time would do."""
        if not self.s:
            return dict(self.x)
        return {name: (w.to(z.dtype) + self.s * z).to(w.dtype) for name, w, z in self.noise(self.seed)}

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The module's output there."""
        return functional_call(self.module, self.weights(), inputs, named)
