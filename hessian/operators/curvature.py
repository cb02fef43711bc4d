"""Curvature of a mean loss at a point, by products with vectors: Hessian, Gauss-Newton, empirical Fisher.

Every product runs over the pieces of the data in their order, so it is the same to the bit each time.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from decomfl_lab.devices import available_memory, computing
from decomfl_lab.errors import require
from decomfl_lab.objectives.function import Piece, Slopes, add_back_, enabled
from decomfl_lab.objectives.perturbation import memory_of
from decomfl_lab.objectives.trials.derivatives import Comparison, HessianComparison, OutputComparison
from decomfl_lab.objectives.trials.watch import nodes
from hessian.operators.mean_loss import MeanLoss, differentiating
from hessian.operators.operator import Operator, digest, is_finite, zeros
from hessian.operators.probes import probe

CACHE_BYTES = 2 << 30  # memory for the graphs that ``HessianOperator`` keeps, unless told otherwise

_TRIAL = 9  # purpose of the vector that a product is tried with where the first one has many zeros

_UNKNOWN = 1 << 60  # the bytes of a graph of which nothing is known: too many to keep it


class _CurvatureOperator(Operator):
    """What the operators share: an objective, the point where its curvature is asked for, and the sum over pieces."""

    name: str
    decays = True  # whether a penalty (λ/2)‖x‖² of the objective adds λI

    def __init__(self, objective: MeanLoss, x: Tensor | None = None) -> None:
        """Curvature of ``objective`` at ``x``, by default ``objective.x``; InputError where f(x) is not finite."""
        self.objective = objective
        if x is not None:
            objective(x)
        self.x = objective.x if x is None else x.detach().clone()
        self.d = objective.d
        self.dtype = objective.dtype
        self.device = objective.device
        self.layout = objective.layout
        self._decay = objective.weight_decay if self.decays else 0.0  # λ of λI
        # what was not tried of the derivatives, and why; empty where they were, or will be at the first product
        self.remark = ""
        self._tried = objective.trusted or objective.compute != "float32"  # as those in full were tried
        self._recurrent = any(isinstance(part, nn.RNNBase) for part in objective.module.modules())

    def matvec(self, v: Tensor) -> Tensor:
        """See ``Operator``; InputError if torch has no such derivative, or the product is not finite.

        The first product is compared with differences (see ``objectives.trials.derivatives``).
        """
        self._check(v)
        with enabled(), self._differentiable(f"a product with the {self.name}"):
            trial = self._trial_along(v)
            total: Tensor | None = None
            for b, piece in enumerate(self.objective.pieces):
                product = None if trial is None else trial.see(b, piece, partial(self._product, b, v))
                if total is None:  # not sooner, as the trial holds most while it sees the first piece
                    total = self._decay * v if self._decay else zeros(self)
                if product is None:
                    self._add_product_(total, b, v, piece.share)
                else:
                    total.add_(product, alpha=piece.share)
                del product
            assert total is not None
            if trial is not None:
                self.remark = trial.verdict(lambda b: self._product(b, v))
        require(is_finite(total), f"product of the {self.name} with v", "be finite", "NaN or infinity")
        return total

    @property
    def remarks(self) -> tuple[str, ...]:
        """See ``Operator``: of the objective, and of the derivatives."""
        return tuple(filter(None, (self.objective.remark, self.remark)))

    def gradient(self) -> Tensor:
        return self.objective.gradient(self.x)

    def _trial_along(self, v: Tensor) -> Comparison | None:
        """What the first product is to be compared by; a vector with many zeros sees little, so another goes first."""
        if self._tried:
            return None
        self._tried = True
        if 2 * int(v.count_nonzero()) >= self.d:
            return self._trial(v)
        other = probe(self, 0, _TRIAL, 0)
        trial = self._trial(other)
        for b, piece in enumerate(self.objective.pieces):
            trial.see(b, piece, partial(self._product, b, other))
        self.remark = trial.verdict(lambda b: self._product(b, other))
        return None

    @abstractmethod
    def _trial(self, v: Tensor) -> Comparison:
        """The comparison of a product with v."""

    def fingerprint(self) -> str:
        return digest(f"{self.name} {self.objective.fingerprint()}", self.x)

    def _product(self, b: int, v: Tensor) -> Tensor:
        """The product of piece number ``b``'s own matrix with v."""
        product = zeros(self)
        self._add_product_(product, b, v, 1.0)
        return product

    @abstractmethod
    def _add_product_(self, total: Tensor, b: int, v: Tensor, share: float) -> None:
        """Add to ``total`` that share of the product of piece number ``b``'s own matrix with v."""

    @contextmanager
    def _differentiable(self, what: str) -> Iterator[None]:
        """Inside, kernels without second or forward derivatives stand aside; where one is left, an InputError names it.

        Fused attention and the fused encoder layer have none, nor has the LSTM of oneDNN or cuDNN.
        """
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(computing(self.device, self.objective.compute))
            stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            torch.backends.mha.set_fastpath_enabled(False)
            if self._recurrent:
                libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
                for library in libraries:
                    stack.callback(setattr, library, "enabled", library.enabled)
                    library.enabled = False
            stack.enter_context(differentiating(what))
            yield


class HessianOperator(_CurvatureOperator):
    """H = ∇²f(x), by differentiating ∇f(x)ᵀv once more (Pearlmutter 1994).

    A product costs about three gradients where the gradient's graph is built anew, about two where it is kept. Pieces
    of 100 to 250 examples (``chunk``) keep convolutions in the processor's cache.

    Attributes:
        cache: The bytes that the kept graphs may hold.
        graph_bytes: What the graphs of all pieces would hold, by the first one's. As many pieces are kept as fit.
    """

    name = "hessian"

    def __init__(self, objective: MeanLoss, x: Tensor | None = None, *, cache: float | None = None) -> None:
        """Hessian of ``objective`` at ``x``.

        Args:
            objective: The mean loss f.
            x: The point, (d,); by default ``objective.x``.
            cache: The bytes for graphs that are kept from one product to the next; by default ``CACHE_BYTES``, or a
                quarter of the free memory. 0 keeps none, ``math.inf`` all.

        Raises:
            InputError: If f(x) is not finite, or f has no second derivative.
        """
        super().__init__(objective, x)
        self.cache = min(CACHE_BYTES, (available_memory(self.device) or math.inf) / 4) if cache is None else cache
        require(self.cache >= 0, "cache", "be a number of bytes, at least 0", cache)
        self._leaves = objective.leaves(self.x)
        first, size = self._measured(objective.pieces[0])
        per_example = size / objective.pieces[0].examples
        self.graph_bytes = math.ceil(per_example * sum(piece.examples for piece in objective.pieces))
        self._room = self.cache / per_example if per_example else math.inf  # in examples
        self._kept: dict[int, Slopes] = {}
        self._keep(0, first)

    @property
    def cached(self) -> int:
        """The number of pieces whose graph is kept by now."""
        return len(self._kept)

    def _add_product_(self, total: Tensor, b: int, v: Tensor, share: float) -> None:
        slopes = self._kept.get(b)
        if slopes is None:
            slopes = self.objective.slopes(self._leaves, self.objective.pieces[b])
            self._keep(b, slopes)
        self.objective.add_product_(total, slopes, self._leaves, v, share, retain_graph=b in self._kept)

    def _trial(self, v: Tensor) -> Comparison:
        return HessianComparison(self.objective, self.x, v)

    def _keep(self, b: int, slopes: Slopes) -> None:
        """Keep the graph of piece number ``b`` if there is room."""
        examples = self.objective.pieces[b].examples
        if examples <= self._room:
            self._kept[b] = slopes
            self._room -= examples

    def __getstate__(self) -> dict[str, Any]:
        """All but the graphs, which no copy can have."""
        state = self.__dict__ | {"_kept": {}}
        state["_room"] = self._room + sum(self.objective.pieces[b].examples for b in self._kept)
        del state["_leaves"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._leaves = self.objective.leaves(self.x)

    def _measured(self, piece: Piece) -> tuple[Slopes, int]:
        """Where the graph of a piece's gradient begins, and the bytes of the tensors that the graph holds."""
        bytes_by_storage: dict[int, int] = {}

        def pack(tensor: Tensor) -> tuple[Tensor, int]:
            if memory_of(tensor) is not None:  # a sparse one has no storage
                storage = tensor.untyped_storage()
                bytes_by_storage[storage.data_ptr()] = storage.nbytes()
            return tensor.detach(), tensor._version  # the tensor itself would keep its own graph alive for ever

        def unpack(packed: tuple[Tensor, int]) -> Tensor:
            tensor, version = packed
            if tensor._version != version:  # torch looks itself only where there are no hooks
                raise RuntimeError("a variable that the gradient needs was modified by an inplace operation")
            return tensor

        with enabled(), self._differentiable("the Hessian"):
            try:
                with saved_tensors_hooks(pack, unpack):
                    slopes = self.objective.slopes(self._leaves, piece)
            except RuntimeError as error:
                if "saved tensor hooks" not in str(error):
                    raise
                slopes = self.objective.slopes(self._leaves, piece)
                bytes_by_storage[0] = _UNKNOWN  # torch.func inside a loss: how large the graph is, is not known
            _refuse_dead_ends(edge.node for edge in slopes.values())
        bytes_by_storage.pop(self.x.untyped_storage().data_ptr(), None)
        return slopes, sum(bytes_by_storage.values())


class _OutputOperator(_CurvatureOperator):
    """JᵀMJ summed over pieces, J the Jacobian of the module's outputs in x, M a matrix on the outputs of one piece."""

    second_derivatives = True  # whether M is made of the loss's second derivatives

    def __init__(self, objective: MeanLoss, x: Tensor | None = None) -> None:
        """See ``_CurvatureOperator``; InputError if the module's outputs are not one tensor."""
        super().__init__(objective, x)
        with enabled(), torch.no_grad():
            outputs = objective.outputs(self.x, objective.pieces[0])
        require(isinstance(outputs, Tensor), "outputs of the module", "be one tensor", type(outputs).__name__)
        require(not outputs.is_complex(), "outputs of the module", "be real numbers", outputs.dtype)

    def quad(self, v: Tensor) -> float:
        """VᵀJᵀMJv from Jv alone, by one forward pass with derivatives along v; accumulated in float64."""
        self._check(v)
        total = self._decay * v.double().square().sum() if self._decay else v.new_zeros((), dtype=torch.float64)
        with enabled(), self._differentiable(f"a quadratic form of the {self.name}"):
            if (trial := self._trial_along(v)) is not None:
                for b, piece in enumerate(self.objective.pieces):
                    trial.see(b, piece, None)
                self.remark = trial.verdict(lambda b: self._product(b, v))
            for piece in self.objective.pieces:
                outputs, along = self._along(piece, v)
                middle = self._middle(outputs, along, piece)
                total += piece.share * (along.double().flatten() @ middle.double().flatten())
        form = float(total)
        require(math.isfinite(form), f"quadratic form of the {self.name}", "be finite", form)
        return form

    def _add_product_(self, total: Tensor, b: int, v: Tensor, share: float) -> None:
        """Add share·Jᵀ(M(Jv)) of piece ``b``: Jv by derivatives forward, Jᵀ of the rest by those backward."""
        piece, leaves = self.objective.pieces[b], self.objective.leaves(self.x)
        outputs, along = self._along(piece, v)
        middle = self._middle(outputs, along, piece)
        with self.objective.at(leaves):
            outputs = self.objective.outputs(leaves, piece)
            if outputs.requires_grad:
                add_back_(total, [outputs], leaves, [middle], share)

    def _along(self, piece: Piece, v: Tensor) -> tuple[Tensor, Tensor]:
        """The piece's outputs z and their derivative Jv along v."""
        with torch.no_grad(), forward_ad.dual_level():
            outputs = self.objective.outputs(forward_ad.make_dual(self.x, v), piece)
            z, along = forward_ad.unpack_dual(outputs)
            return z.clone(), torch.zeros_like(z) if along is None else along.clone()

    def _trial(self, v: Tensor) -> Comparison:
        twice = self.second_derivatives
        return OutputComparison(self.objective, self.x, v, self._along, self._middle, second=twice)

    @abstractmethod
    def _middle(self, outputs: Tensor, along: Tensor, piece: Piece) -> Tensor:
        """M along, of the outputs' shape."""


class GaussNewtonOperator(_OutputOperator):
    """G = Σ_b w_b J_bᵀ (∇²_z loss) J_b / Σ_b w_b, with the Jacobians J of the module's outputs z in x.

    The generalised Gauss-Newton matrix (Schraudolph 2002): positive semi-definite where the loss is convex in the
    outputs, and H less the part that comes from the outputs' own curvature. A product costs about two gradients, a
    quadratic form less than one.
    """

    name = "gauss-newton"
    semidefinite = True

    def _middle(self, outputs: Tensor, along: Tensor, piece: Piece) -> Tensor:
        """(∇²_z loss) along, the derivative of ⟨∇_z loss, along⟩ in z."""
        z = outputs.requires_grad_()
        loss = self.objective.loss_of(z, piece)
        (slope,) = torch.autograd.grad(loss, z, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like(z)
        _refuse_dead_ends([slope.grad_fn])
        (product,) = torch.autograd.grad(slope, z, along, allow_unused=True, materialize_grads=True)
        return product


class FisherOperator(_OutputOperator):
    """F = Σ_i ω_i g_i g_iᵀ, with g_i = ∇_x ℓ_i the gradient of example i's loss and ω_i its weight in the mean.

    The *empirical* Fisher matrix: gradients at the targets given, not at targets drawn from the model. An example is an
    entry of the batch's first dimension (for a language model: a text, not a token). A product needs no g_i on its own:
    with p_i = ∂ℓ_i/∂z_i, and ω_i p_i the i-th part of ∂loss/∂z,

        F v = Σ_i ω_i J_iᵀ p_i (p_iᵀ J_i v)

    A penalty ``weight_decay`` is no loss of an example, and has no part in it.
    """

    name = "fisher"
    semidefinite = True
    second_derivatives = False
    decays = False

    def __init__(self, objective: MeanLoss, x: Tensor | None = None) -> None:
        """See ``_OutputOperator``; InputError if the loss is no mean of losses of single examples."""
        super().__init__(objective, x)
        objective.require_examples("the Fisher matrix")

    def _middle(self, outputs: Tensor, along: Tensor, piece: Piece) -> Tensor:
        """Row i is ω_i p_i (p_iᵀ along_i)."""
        rule = f"have the {piece.examples} examples in their first dimension"
        require(outputs.shape[:1] == (piece.examples,), "outputs of the module", rule, tuple(outputs.shape))
        z = outputs.requires_grad_()
        (mean_slope,) = torch.autograd.grad(self.objective.loss_of(z, piece), z)
        slopes = mean_slope.reshape(piece.examples, -1)
        along = (slopes * along.reshape(piece.examples, -1)).sum(1, keepdim=True)
        # Both factors have ω_i, and one of them is too many; what weighs nothing has no slope either.
        weights = self.objective.example_weights(piece)[:, None]
        return (slopes * along / weights.where(weights > 0, 1)).reshape(outputs.shape)


def _refuse_dead_ends(roots: Iterable[Node | None]) -> None:
    """RuntimeError (told by ``_differentiable``) where the gradient's graph has a node that stands for an error.

    torch puts one behind a backward that is marked ``once_differentiable``. It raises when it is reached; but the way
    to x does not lead through it, so a product would leave out what is behind it without a word.
    """
    if any(node.name().endswith("::Error") for node in nodes(roots)):
        raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
