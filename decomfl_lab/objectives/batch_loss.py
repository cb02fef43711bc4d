"""The loss of a module on a batch, in each form in which a user may write it.

``loss(outputs, targets)``: the module is called with the inputs, and the loss with what it returns.

``loss(model, batch)``: a loss whose first parameter is called ``model`` gets the module itself, with x for its
parameters, and the batch: for penalties on weights, contrastive losses, equations.

``None``: the module's own loss. It is called with the targets as ``labels``, and returns a loss.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require
from decomfl_lab.objectives.modules import swapped
from decomfl_lab.objectives.trees import mapped, tensors
from decomfl_lab.objectives.trials.needs import Needs

IGNORED = -100
"""The label that torch's cross-entropy and the models of transformers leave out of their mean."""

LossFunction = Callable[[Any, Any], Tensor]
"""loss(outputs, targets) or loss(model, batch), a scalar: the mean over the examples of the batch."""


class Form(Enum):
    """What a loss is a function of."""

    OUTPUTS = "outputs"
    MODEL = "model"
    OWN = "own"


@dataclass(frozen=True, eq=False)
class BatchLoss:
    """A scalar for a module and a batch (inputs, targets)."""

    loss: LossFunction | None  # what the user gave; None for the module's own loss
    form: Form  # what it is a function of
    additive: bool = True  # whether the loss of a batch is the mean of its examples' losses, so that a batch may be cut
    tried: bool = False  # whether it is a user's own, which was tried before a run (``runs.preparation``)
    # what it needs of its surroundings, which it shares with those that are made from it
    needs: Needs = field(default_factory=Needs, repr=False)

    @classmethod
    def of(cls, loss: "LossFunction | BatchLoss | None") -> "BatchLoss":
        """The loss that a user gave; InputError if it cannot be called, or has parameters, which would be none of x."""
        if isinstance(loss, BatchLoss):
            return loss
        if loss is None:
            return cls(None, Form.OWN)
        fine = callable(loss) and not (isinstance(loss, type) and issubclass(loss, nn.Module))  # a class makes losses
        require(fine, "loss", "be a function of (outputs, targets), or of (model, batch)", loss)
        if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
            names = ", ".join(name for name, p in loss.named_parameters() if p.requires_grad)
            raise InputError(
                "loss must have no parameters of its own, which would not be trained nor counted: put it into the "
                f"module and write loss(model, batch), got {type(loss).__name__} with {names}"
            )
        try:
            first = next(iter(inspect.signature(getattr(loss, "forward", loss)).parameters), None)
        except (TypeError, ValueError):  # some built-in functions have no signature
            first = None
        return cls(loss, Form.MODEL if first == "model" else Form.OUTPUTS)

    def wide(self) -> "BatchLoss":
        """The same for a module in float64: a loss that is a module has its constants in float64 too."""
        return replace(self, loss=copy.deepcopy(self.loss).double()) if isinstance(self.loss, nn.Module) else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchLoss):
            return False
        return self.loss is other.loss and self.form is other.form and self.additive is other.additive

    def __hash__(self) -> int:
        return hash((id(self.loss), self.form, self.additive))

    @property
    def is_of_outputs(self) -> bool:
        """Whether the loss is one of (outputs, targets)."""
        return self.form is Form.OUTPUTS

    def __call__(self, module: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """The loss of a batch by the module with the parameters that it has.

        Outputs in 16 bits are widened to float32 before a loss of outputs.
        """
        loss = self.needs.met(partial(self._of_batch, module, inputs, targets))
        kept = torch.is_grad_enabled() or not isinstance(loss, Tensor)
        return loss if kept else loss.detach()  # a graph that the loss alone needs ends here

    def _of_batch(self, module: nn.Module, inputs: Any, targets: Any) -> Tensor:
        if self.form is Form.OWN:
            return own_loss(module, inputs, targets)
        if self.form is Form.OUTPUTS:
            return self.of_outputs(called(module, inputs), targets)
        assert self.loss is not None
        try:
            return self.loss(module, inputs if targets is None else (inputs, targets))
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise InputError(
                "loss must take (model, batch) where its first parameter is named model, the batch as it was given, "
                f"got one that says {' '.join(str(error).split())[:120]!r}"
            ) from error

    def of_outputs(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a batch by the module's outputs for it, or by their ``logits`` where it takes these."""
        assert self.loss is not None
        if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors(outputs)):
            promote = torch.promote_types
            outputs = mapped(lambda t: t.to(promote(t.dtype, torch.float32)) if t.is_floating_point() else t, outputs)
        logits = logits_of(outputs)
        try:
            if logits is outputs:
                return self.loss(outputs, targets)
            try:
                return self.loss(logits, targets)
            except AttributeError:  # a loss that takes them out of the outputs itself, or other fields
                return self.loss(outputs, targets)
        except TypeError as error:
            if "object is not callable" not in str(error):
                raise
            raise InputError(
                "loss must be one of (outputs, targets), or of (model, batch) with a first parameter that is named "
                f"model, got one that calls what it is given ({error})"
            ) from error

    def at(self, module: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        """The loss of a batch by the module with these tensors for its parameters and buffers."""
        with swapped(module, tensors):
            return self(module, inputs, targets)


def called(module: nn.Module, inputs: Any) -> Any:
    """What a module returns for inputs, which are one argument, several (a tuple) or named (a mapping)."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):
        return module(*inputs)
    return module(inputs)


def logits_of(outputs: Any) -> Any:
    """The logits of an output of transformers; any other output as it is."""
    return getattr(outputs, "logits", outputs)


def own_loss(module: nn.Module, inputs: Any, targets: Any) -> Tensor:
    """The loss that a module returns when it is given the targets as ``labels``, in a field or under a key ``loss``."""
    rule = "be mappings with labels where loss is None, for the loss that the model returns of its own"
    require(isinstance(inputs, Mapping), "data", rule, type(inputs).__name__)
    try:
        outputs = module(**inputs, labels=targets)
    except TypeError as error:
        if "'labels'" not in str(error):
            raise
        rule = "take labels= and return a loss where loss is None (else give loss(outputs, targets))"
        raise InputError(f"model must {rule}, got {type(module).__name__}") from error
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, tuple) and outputs:
        loss = outputs[0]
    if isinstance(loss, Tensor):
        return loss
    raise InputError(f"outputs of the module must have a loss where loss is None, got {type(outputs).__name__!r}")


def own_loss_of(module: Any, logits: Any, targets: Any) -> Tensor:
    """The own loss of a model of transformers by its logits; AttributeError or so where it has no such function."""
    size = getattr(module.config, "vocab_size", None)
    # Kinds of models take different ones of these names, and leave the others be.
    loss: Tensor = module.loss_function(
        logits=logits, pooled_logits=logits, labels=targets, vocab_size=size, config=module.config
    )
    return loss


def require_mean(loss: Any) -> None:
    """InputError with the line that mends it unless what a user's loss returned is one number, a tensor."""
    rule = (
        "return a scalar tensor, the mean over the batch (of a loss an example that is: "
        "lambda outputs, targets: loss(outputs, targets).mean())"
    )
    shape = tuple(loss.shape) if isinstance(loss, Tensor) else None
    require(shape == (), "loss", rule, f"shape {shape}" if shape else type(loss).__name__)
    require(not loss.is_complex(), "loss", "be a real number", loss.dtype)
