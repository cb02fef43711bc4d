"""Points x + c z along low-rank directions with one product by the weights for all of them.

For a matrix W of x and its part z = s Σ_k A_k B_kᵀ of a direction,

    (W + c z) h = W h + c s Σ_k A_k ⟨B_k, h⟩,

so no perturbed matrix is ever formed: the inputs h of all points go through W together, each beside r scalar products
and r multiples of A_k of its own. Linear layers and embeddings are done so. Any other function of a matrix (a
convolution, say) is given W + c z, one a point, and every function of a vector too: all modules that ``Batched``
covers are covered, and along directions that are not low-rank points are formed as there. Losses agree with those of
other engines to rounding in x's precision.

Source: EGGROLL, arXiv 2511.16652.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from decomfl_lab.engines.base import Line, SampleLoss, wide_dtype
from decomfl_lab.engines.batched import Batched, Batches, attention
from decomfl_lab.estimators.differences import Point, Values
from decomfl_lab.language.causal import Verbalized
from decomfl_lab.noise import LowRank
from decomfl_lab.objectives.objective import ModuleObjective
from decomfl_lab.objectives.perturbed import reads_no_element
from decomfl_lab.records.seeds import stream_of
from decomfl_lab.replicas.rebuild import form_points_

__all__ = ["Shared", "is_linear_net"]


def is_linear_net(objective: object) -> bool:
    """Whether all parameters of the objective's module are those of linear layers, where sharing saves most.

    On a CPU attention takes longer side by side than a point at a time, and a convolution's weights are formed.
    """
    if not isinstance(objective, ModuleObjective) or isinstance(objective.module, Verbalized):
        return False
    owners = [part for part in objective.module.modules() if list(part.parameters(recurse=False))]
    return all(isinstance(part, nn.Linear) for part in owners)


class _Product(torch.autograd.Function):
    """W h + c s Σ_k A_k ⟨B_k, h⟩ + bias, with a rule for ``vmap`` that makes few passes over memory."""

    @staticmethod
    def forward(h: Tensor, w: Tensor, left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
        """For one point: left is c s Aᵀ (r, a), right Bᵀ (r, b)."""
        return linear(h, w, bias) + (h @ right.T) @ left

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is no gradient."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, h: Tensor, w: Tensor, left: Tensor, right: Tensor, bias: Tensor
    ) -> tuple[Tensor, int]:
        """For all points; an input that they share is multiplied once."""
        n = info.batch_size
        # Shapes for n points: left (n, r, a), right (n, r, b), bias (n, a). What all points share is expanded. W is
        # that of x, the same for all.
        left, right, bias = (
            t.movedim(own, 0) if own is not None else t.expand(n, *t.shape)
            for t, own in zip((left, right, bias), in_dims[2:], strict=True)
        )
        # In a first layer all points have the same h, whose W h is made once.
        shared = in_dims[0] is None
        h = h if shared else h.movedim(in_dims[0], 0)
        shape = h.shape[:-1] if not shared else (n, *h.shape[:-1])
        # Inputs as rows: (1, m, b) or (n, m, b). By each point B they are ⟨B_k, h⟩, (n, m, r); by W they are one
        # product.
        rows = h.reshape(1 if shared else n, -1, h.shape[-1])
        inner = torch.bmm(rows.expand(n, -1, -1), right.mT)
        found = linear(rows, w)
        if shared:
            # A new matrix for each point, to which the one product W h is added: (n, m, a).
            found = torch.baddbmm(bias[:, None], inner, left).add_(found)
        else:
            # The product W h has a matrix for each point already, so the others are added in place.
            found.baddbmm_(inner, left).add_(bias[:, None])
        return found.view(*shape, len(w)), 0


class _Beside(TorchFunctionMode):
    """Functions compute with W + c z where they are given a tensor W of x, linear ones without forming it."""

    def __init__(self, of: LowRank, own: Sequence[Tensor], factors: Tensor, c: Tensor) -> None:
        super().__init__()
        # Tensors are told by their identity, since a function is given the very views of x that were bound. They are
        # kept beside their places, so that no other tensor can take their id.
        self.places = {id(w): (w, at) for w, at in zip((w for w in own if w.numel()), of.tensors, strict=True)}
        self.factors, self.c, self.scaled = factors, c, c * float(of.scale)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # A question about shape or dtype is answered by W itself.
        if reads_no_element(func, args):
            return func(*args, **kwargs)
        if func in (linear, embedding) and len(args) > 1 and self._is_matrix(args[1]):
            third, fourth = (*args[2:], None, None)[:2]
            if func is linear:
                return self._linear(args[0], args[1], kwargs.get("bias", third))
            if kwargs.get("max_norm", fourth) is None:  # else it writes to the weights
                return self._embedding(args[0], args[1])
        # Whatever else takes a tensor of x gets W + c z, formed for this call.
        args, kwargs = tree_map_only(Tensor, self._moved, (args, kwargs))
        return func(*args, **kwargs)

    def _is_matrix(self, w: Any) -> bool:
        return id(w) in self.places and self.places[id(w)][1].terms > 0

    def _pair(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of a matrix's part of c z: c s Aᵀ (r, a) and Bᵀ (r, b)."""
        at = self.places[id(w)][1]
        # All A_k of a matrix come before its B_k, each of them in one piece.
        sizes = [at.terms * at.rows, at.terms * at.columns]
        left, right = self.factors[at.factor : at.factor + sum(sizes)].split(sizes)
        return self.scaled * left.view(at.terms, at.rows), right.view(at.terms, at.columns)

    def _moved(self, w: Tensor) -> Tensor:
        """W + c z; any other tensor as it is."""
        if id(w) not in self.places:
            return w
        at = self.places[id(w)][1]
        if at.terms:
            left, right = self._pair(w)
            # c s Σ_k A_k B_kᵀ as one product of (a, r) by (r, b).
            return w + (left.T @ right).view(w.shape)
        return w + self.c * self.factors[at.factor : at.factor + at.size].view(w.shape)

    def _linear(self, h: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        left, right = self._pair(w)
        moved = left.new_zeros(len(w)) if bias is None else self._moved(bias)
        found: Tensor = _Product.apply(h, w, left, right, moved)  # type: ignore[no-untyped-call]
        return found

    def _embedding(self, rows: Tensor, w: Tensor) -> Tensor:
        left, right = self._pair(w)
        # Row i of W + c z is W_i + c s Σ_k A_k[i] B_k: only the rows that are read are made.
        return embedding(rows, w) + left.T[rows] @ right


def _value(batches: Batches, of: LowRank, factors: Tensor, c: Tensor, x: Tensor, inputs: Any, targets: Any) -> Tensor:
    """f(x + c z) on a batch, z of these factors."""
    cut = zip(batches.layout.shapes, x.split(batches.layout.sizes), strict=True)
    own = [part.view(shape) for shape, part in cut]
    named = dict(zip(batches.layout.names, own, strict=True))
    with _Beside(of, own, factors, c):
        return batches.loss.at(batches.module, named, inputs, targets)


class Shared(Batched):
    """Many points along low-rank directions in one pass with shared products; see ``shared``."""

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Values:
        """See ``Engine``."""
        of, found = line.distribution, self._batches(samples)
        x = line.x.to(wide_dtype(line.x))
        fits = found is not None and all(own.layout.dtype == x.dtype for own, _ in found)
        if not isinstance(of, LowRank) or found is None or not fits:
            return super().losses(line, points, samples)
        # A row of factors for each direction: x + c z and x − c z take the same one.
        wanted = dict.fromkeys(p for p, _ in points)
        streams = {stream_of(line.seed, p): row for row, p in enumerate(wanted)}
        factors = torch.empty(len(streams), of.factors, dtype=x.dtype, device=x.device)
        plain, ones = LowRank(((of.factors,),)), [1.0] * len(streams)  # a vector's elements are the factors themselves
        zeros = torch.zeros(of.factors, dtype=x.dtype, device=x.device)
        backend, workers = line.replica.backend, line.replica.workers
        form_points_(factors, zeros, list(streams), ones, plain, backend=backend, workers=workers)
        # The row and the step of every point.
        rows = torch.tensor([streams[stream_of(line.seed, p)] for p, _ in points], device=x.device)
        steps = torch.from_numpy(np.array([c for _, c in points], dtype=np.float32)).to(x)
        count = self._passes.at_once(found, x, 4, each=of.factors)
        values: list[list[Tensor]] = [[] for _ in samples]
        with torch.no_grad(), attention(x.device):
            for at, c in zip(rows.split(count), steps.split(count), strict=True):
                for result, (own, data) in zip(values, found, strict=True):
                    # Over the rows and the steps; x and the batch are the same for all points.
                    losses = vmap(partial(_value, own, of), (0, 0, None, None, None))
                    result.append(losses(factors[at], c, x, *data))
        return torch.stack([torch.cat(own) for own in values]).double()
