"""A user's module as the lab computes with it: without wrappers, and with embeddings that have one derivative."""

import copy
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from decomfl_lab.errors import THEIRS, InputError, require
from decomfl_lab.layout import MODULE
from decomfl_lab.objectives.perturbation import memory_of
from decomfl_lab.objectives.trees import feed

TABLES = (nn.Embedding, nn.EmbeddingBag)


class HeldEmbedding(nn.Embedding):
    """An embedding whose padding row is a constant, whatever its weight has there.

        out[..., :] = held  where the token is ``padding_idx``,  else weight[token]

    torch's own is no function of its weight that can be differentiated: values follow the padding row, reverse
    derivatives leave it out, forward ones do not (pytorch issue 93950). Here all three agree, with what SGD makes of
    it: the row stays as it was, directions do not perturb it, and its curvature is zero. A weight that is tied to
    another layer's still counts there.
    """

    held: Tensor
    kind: type[nn.Embedding]
    padding_idx: int

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """See the class."""
        found = embedding(input, self.weight)
        return torch.where((input == self.padding_idx)[..., None], self.held.to(found.dtype), found)


def prepared(module: nn.Module, *, shared: bool) -> nn.Module:
    """A copy of a user's module to compute with; the module itself is never changed.

    DataParallel, DistributedDataParallel and torch.compile are unwrapped; embeddings with sparse gradients have dense
    ones, and those with a padding row hold it (``HeldEmbedding``). Where tensors are ``shared`` they stay the module's
    own, so that nothing of size d is copied. InputError if it is no module, its parameters have no values yet or share
    memory, it cannot be copied, or its forward pass writes to its weights.
    """
    require(isinstance(module, nn.Module), "model", MODULE, module)
    module = _unwrapped(module)
    for name, p in module.named_parameters():
        lazy = isinstance(p, nn.parameter.UninitializedParameter)
        require(not lazy, f"parameter {name!r}", "have a shape: call the module once on a batch before", "a lazy one")
        require(not p.is_complex(), f"parameter {name!r}", "be of real numbers", p.dtype)
        require(p.layout == torch.strided, f"parameter {name!r}", "be dense", str(p.layout))
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    # Where parameters stay the module's own, a trial sees whether views of them that are attributes are ever read. A
    # hook before a forward pass makes some of these anew.
    for name, part in [] if shared else module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, Tensor) and not value.requires_grad and not part._forward_pre_hooks:
                named.append((f"{name}.{key}".lstrip("."), value))
    require_apart(named)
    for name, part in module.named_modules():
        scripted = isinstance(part, torch.jit.ScriptModule)
        require(not scripted, f"module {name!r}", "be the one that torch.jit made its script of", type(part).__name__)
        clips = getattr(part, "max_norm", None) if isinstance(part, TABLES) else None
        require(clips is None, f"max_norm of {name!r}", "be None, as its forward pass writes to its weights", clips)
    kept: list[Tensor] = [*module.parameters(), *module.buffers()] if shared else []
    for part in module.modules() if shared else ():
        kept += [value for value in vars(part).values() if isinstance(value, Tensor)]
    try:
        own = copied(module, kept)
    except THEIRS as error:  # whatever a user's module holds
        # Whether something has to be changed about a part, but for what it is made of.
        odd = (part.sparse or part.scale_grad_by_freq for part in module.modules() if isinstance(part, TABLES))
        wrapped = (part is not _unwrapped(part) or part._compiled_call_impl for part in module.modules())
        wants_care = any(odd) or any(wrapped) or any(map(_pads, module.modules()))
        if shared and not wants_care:
            return module  # it will do: what is copied above is no tensor
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"model must be a module that copy.deepcopy can copy, got {told[:200]}") from error
    for part in list(own.modules()):
        for name, child in part.named_children():
            setattr(part, name, _unwrapped(child))
        part._compiled_call_impl = None
        if isinstance(part, TABLES):
            part.sparse = part.scale_grad_by_freq = False  # which change derivatives, and no value
        if _pads(part):
            table: Any = part  # which holds its padding row from now on
            table.kind, table.__class__ = type(part), HeldEmbedding
            table.register_buffer("held", table.weight.detach()[table.padding_idx].clone(), persistent=False)
    return own


def copied(module: nn.Module, kept: Collection[Tensor] = ()) -> nn.Module:
    """A deep copy, but for the tensors that are kept; also of a pruned module, or one with torch's old weight_norm.

    Such a module has as an attribute what a hook computes of its parameters before each forward pass, and torch copies
    no tensor with a graph. In the copy it is one without, which wants a gradient, so that a trial finds whoever reads
    it before it is computed anew.
    """
    memo = {id(tensor): tensor for tensor in kept}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone().requires_grad_()
    return copy.deepcopy(module, memo)


def handed_back_(module: nn.Module) -> nn.Module:
    """Make torch's embeddings again of those that hold their padding row, with that row in their weight."""
    owners = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    for part in module.modules():
        # A weight that another layer uses too has its own row there, which is the model's.
        if isinstance(part, HeldEmbedding) and owners.count(id(part.weight)) == 1:
            with torch.no_grad():
                part.weight[part.padding_idx] = part.held.to(part.weight.dtype)
            part.__class__ = part.kind  # type: ignore[assignment]
            del part.held, part.kind
    return module


@contextmanager
def swapped(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, a module computes with these tensors for its parameters and buffers, whatever other names they have.

    It is what ``torch.func.functional_call`` does, which leaves tensors for the parameters of a layer with two names
    (torch 2.13).
    """
    named = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    others = {id(named[name]): tensor for name, tensor in tensors.items()}
    places: list[tuple[Any, str, Any]] = []  # each with the tensor that the module has there
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            places += [(held, key, tensor) for key, tensor in held.items() if id(tensor) in others]
    try:
        for table, key, tensor in places:
            table[key] = others[id(tensor)]
        yield
    finally:
        for table, key, tensor in places:
            table[key] = tensor


def constants(module: nn.Module, names: Collection[str]) -> str:
    """A digest of all that a module's loss depends on beside the parameters of these names, and is kept nowhere else.

    That is parameters that are not trained, and buffers; but not the statistics of a BatchNorm, which are made anew.
    """
    norms = {name for name, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._NormBase)}
    h = hashlib.blake2b(digest_size=8)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name not in names and name.rpartition(".")[0] not in norms:
            h.update(name.encode())
            feed(h, tensor)
    return h.hexdigest()


def _unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch's wrappers, whose names for its parameters are its own."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif type(module).__name__ == "OptimizedModule":
            inside: Any = module._orig_mod
            module = inside
        else:
            return module


def _pads(part: nn.Module) -> bool:
    """Whether a part is torch's embedding with a padding row, perhaps by another name."""
    plain = isinstance(part, nn.Embedding) and type(part).forward is nn.Embedding.forward
    return plain and part.padding_idx is not None and not hasattr(part, "parametrizations")


def require_apart(named: Iterable[tuple[str, Tensor]]) -> None:
    """InputError where a trainable tensor shares an element with another tensor, or with itself.

    As elements of x they would move apart, while in their user's code they always hold the same numbers. Tensors that
    lie beside each other in one storage, or between each other's elements, are apart. Each is given once.
    """
    # On which device each lies, from the address of its first byte to that behind its last.
    places = []
    for n, (name, t) in enumerate(named):
        if not isinstance(t, UninitializedBuffer | UninitializedParameter) and t.numel() and memory_of(t):
            last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
            places.append((str(t.device), t.data_ptr(), t.data_ptr() + (last + 1) * t.itemsize, n, name, t))
    before: list[tuple[str, int, int, int, str, Tensor]] = []  # those that reach as far as the place that is looked at
    for place in sorted(places, key=lambda place: place[:2]):
        device, begin, _, n, name, t = place
        # An element may be at two places of one tensor: then so is one of the first slice along some dimension.
        array = _place(t) if t.requires_grad and not torch.ops.aten.is_non_overlapping_and_dense(t) else np.empty(())
        while array.ndim:
            apart = not np.shares_memory(array[:1], array[1:])
            rule = "have memory for each of its elements: register a copy (.contiguous())"
            require(apart, f"parameter {name!r}", rule, f"a view of strides {t.stride()}")
            array = array[0, ...]  # a view: ``array[0]`` of one dimension would be read
        before = [other for other in before if other[0] == device and other[2] > begin]
        for *_, m, named_so, other in before:
            if (t.requires_grad or other.requires_grad) and np.shares_memory(_place(t), _place(other)):
                (_, first), (_, second) = sorted([(n, name), (m, named_so)])
                raise InputError(
                    f"parameters {first!r} and {second!r} must share no memory, as they would move apart: register one "
                    f"Parameter twice ({_attribute(second)} = {_attribute(first)}), or a .clone(), got two over one "
                    "storage"
                )
        before.append(place)


def _place(t: Tensor) -> Any:
    """An array over the memory of a tensor, perhaps on a GPU: to be asked where it lies, and never to be read."""
    strides = tuple(stride * t.itemsize for stride in t.stride())
    form = {"version": 3, "typestr": f"|V{t.itemsize}", "shape": tuple(t.shape), "strides": strides}
    return np.asarray(SimpleNamespace(__array_interface__=form | {"data": (t.data_ptr(), True)}))


def _attribute(name: str) -> str:
    """How a tensor of this name is written in the code of its module."""
    return "self" + re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f".{name}")
