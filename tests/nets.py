"""Modules that the tests of several rooms need."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    """What ``make`` makes with torch's generator at the seed, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _same(h: Any) -> Any:
    return h


class Around(nn.Module):
    """An inner module with a function of its inputs before it, and one of its outputs after it."""

    def __init__(
        self, inner: nn.Module, *, before: Callable[[Any], Any] = _same, after: Callable[[Any], Any] = _same
    ) -> None:
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, h: Any) -> Any:
        return self.after(self.inner(self.before(h)))


class _Shared(list[int]):
    """A list that is not copied."""

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Counting(nn.Module):
    """It counts the examples that go through it; a copy counts with it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, _Shared()

    def forward(self, h: Tensor) -> Tensor:
        self.seen.append(len(h))
        return self.inner(h)  # type: ignore[no-any-return]
