"""A user's module as the lab computes with it: without wrappers, and with embeddings that have one derivative."""

import copy
import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.parallel import DataParallel, DistributedDataParallel

from decomfl_lab.errors import THEIRS, InputError, require
from decomfl_lab.layout import MODULE
from decomfl_lab.objectives.aliasing import require_apart
from decomfl_lab.objectives.trees import feed


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
    ones, and those with a padding row hold it (``HeldEmbedding``).

    Args:
        module: The module.
        shared: Whether parameters, buffers and other tensors stay the module's own, so that nothing of size d is
            copied.

    Raises:
        InputError: If it is no module, its parameters have no values yet or share memory, it cannot be copied, or its
            forward pass writes to its weights.
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
        clips = getattr(part, "max_norm", None) if isinstance(part, nn.Embedding | nn.EmbeddingBag) else None
        require(clips is None, f"max_norm of {name!r}", "be None, as its forward pass writes to its weights", clips)
    kept: list[Tensor] = [*module.parameters(), *module.buffers()] if shared else []
    for part in module.modules() if shared else ():
        kept += [value for value in vars(part).values() if isinstance(value, Tensor)]
    try:
        own = copied(module, kept)
    except THEIRS as error:  # whatever a user's module holds
        if shared and not any(map(_wants_care, module.modules())):
            return module  # it will do: what is copied above is no tensor
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"model must be a module that copy.deepcopy can copy, got {told[:200]}") from error
    for part in list(own.modules()):
        for name, child in part.named_children():
            setattr(part, name, _unwrapped(child))
        part._compiled_call_impl = None
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
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
    tables: list[dict[str, Any]] = [own for part in module.modules() for own in (part._parameters, part._buffers)]
    places = [(table, key, own) for table in tables for key, own in table.items() if id(own) in others]
    try:
        for table, key, own in places:
            table[key] = others[id(own)]
        yield
    finally:
        for table, key, own in places:
            table[key] = own


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


def _wants_care(part: nn.Module) -> bool:
    """Whether something has to be changed about this one module (not its children)."""
    compiled: bool = type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
    table = isinstance(part, nn.Embedding | nn.EmbeddingBag)
    wrapped = isinstance(part, DataParallel | DistributedDataParallel)
    odd = table and (part.sparse or part.scale_grad_by_freq)
    return bool(compiled or wrapped or odd or _pads(part))
