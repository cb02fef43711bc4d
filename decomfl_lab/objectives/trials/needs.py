"""What a user's forward pass needs of its surroundings, beside what all get: learnt when torch asks for it.

    graph    values are computed without a graph, but a loss may differentiate the module in its inputs
    copies   a parameter begins anywhere in x, but torch.view_as_complex takes one that begins at an even place

The first evaluation is made once more for each, and later ones have it from the beginning. For all others nothing is
different: no graph, no mode, and no parameter is copied.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

T = TypeVar("T")

_NO_GRAPH = re.compile("does not require grad and does not have a grad_fn")
_ODD_PLACE = re.compile("(storage_offset|stride).* divisible by")


class Calls(TorchFunctionMode):
    """Inside, ``_call`` calls every function of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Copies(Calls):
    """Inside, a function that does not take a tensor for its place in memory is given a copy, which has its graph."""

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not (_ODD_PLACE.search(str(error)) and args and isinstance(args[0], Tensor)):
                raise
            return func(args[0].clone(), *args[1:], **kwargs)


class Needs:
    """What is known of one loss and its module."""

    def __init__(self) -> None:
        self.graph = False  # whether a graph is recorded where only values are asked for
        self.copies = False  # whether tensors at odd places are copied

    def met(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which may have a graph though none is recorded around it; it may be called anew."""
        while True:
            before = self.graph, self.copies
            try:
                with ExitStack() as surroundings:
                    if self.copies:
                        surroundings.enter_context(_Copies())
                    if self.graph:
                        surroundings.enter_context(torch.enable_grad())
                    return work()
            except RuntimeError as error:
                self.graph = self.graph or _NO_GRAPH.search(str(error)) is not None
                self.copies = self.copies or _ODD_PLACE.search(str(error)) is not None
                if before == (self.graph, self.copies):
                    raise
