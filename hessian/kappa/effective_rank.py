"""``hessian.effective_rank``: κ of a model, a loss and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from decomfl_lab.datasets.given import Data
from decomfl_lab.errors import InputError, known_options, require
from decomfl_lab.objectives.batch_loss import LossFunction
from hessian.kappa.estimation import BESIDE, _Run
from hessian.kappa.result import EffectiveRank, EffectiveRankProgress
from hessian.kappa.settings import Settings
from hessian.operators.curvature import HessianOperator
from hessian.operators.mean_loss import MeanLoss, Weights, enabled
from hessian.operators.operator import Operator
from hessian.operators.whitened import WhitenedOperator
from hessian.resume import Checkpoint
from hessian.spectrum.lanczos import require_room

__all__ = ["effective_rank"]


@known_options
def effective_rank(
    model: Operator | nn.Module,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    rtol: float = Settings.rtol,
    confidence: float = Settings.confidence,
    max_products: int = Settings.max_products,
    products: int | None = Settings.products,
    seed: int = Settings.seed,
    checkpoint: Path | None = None,
    on_progress: Callable[[EffectiveRankProgress], None] | None = None,
    trace_operator: Operator | None = None,
    trace: float | None = None,
    max_basis: int | None = Settings.max_basis,
    whiten: Tensor | None = None,
    weights: Weights | None = None,
    weight_decay: float = 0.0,
    trust: bool = False,
) -> EffectiveRank:
    """κ = tr(H)/‖H‖₂ with a confidence interval, by Lanczos and probes of what Lanczos left.

    With Q the k Lanczos vectors (rows), T = Q H Qᵀ and P = I − QᵀQ,

        tr(H) = tr(T) + E[uᵀHu],    u = Pz √(d − k)/‖Pz‖,    θ = max |eig(T)| ≤ ‖H‖₂

    so the products that find θ also take the outliers out of the trace, whose variance they dominate:
    Var ≤ 2‖PHP‖_F² in place of 2‖H‖_F². For Gaussian z, u is uniform on a sphere of the complement, so the mean is
    exact, and a part of PHP that is a multiple of P adds no variance.

    1. *Lanczos* until a much larger ‖H‖₂ is as good as excluded (``Hidden``: what the random start vector can have
       missed) and one more step would save less than one product of probes. How the variance falls with k is read off
       a scout, E‖PHPz₀‖² = ‖PHP‖_F² for every k from the single product Hz₀. The scout is no sample of the trace, so k
       is independent of the samples that make the interval.
    2. *Probes*, at least 3, until the interval is as narrow as asked for. What a probe's product says of the variance,
       ‖PHu‖², says far more than the spread of few forms does, so the interval (see ``SphereForms``) is nearly as wide
       with 3 probes as with many; and it knows about the forms' skewness, which Student's t does not.

    With ``products`` = B nothing is decided on the way: 2B/3 steps, and probes for the rest (for 20 to 30 products
    no rule with scouts did better); where B ≥ d, the d steps that make κ exact.

    Args:
        model: H as an operator, or the module that has it.
        loss: The loss(outputs, targets) of a module, the mean over the examples of a batch, or its loss(model, batch),
            if the first parameter is called ``model``; None with an operator, and for the module's own loss.
        data: The data of a module: batches (inputs, targets) in a list or a DataLoader, a Dataset, or a pair of
            tensors or arrays; None with an operator. H is then the Hessian of the mean loss over these data in the
            module's trainable parameters (``MeanLoss`` says what it asks for, and has more options).
        rtol: Half-width of κ's interval to reach, relative to κ.
        confidence: The confidence of the interval, in (0, 1).
        max_products: The most products to spend.
        products: The number of products to spend instead (fewer only if the Lanczos vectors span everything).
        seed: The seed of everything random, 0..2**64-1.
        checkpoint: A file that is written along the way (a tenth of the time at most), and gone on from if it is there,
            to the same bits.
        on_progress: A function that is called after every product.
        trace_operator: An operator of the same trace whose quadratic forms are cheaper (the Gauss-Newton matrix of
            a piecewise-affine network): all probes are taken with it, tr(QGQᵀ) by k more forms, and H gives only θ.
        trace: tr(H) where it is known (``gauss_newton_trace``): then there are only Lanczos steps, until ‖H‖₂ is
            known to rtol/5, or ``products`` of them, and the interval is that of ‖H‖₂ alone.
        max_basis: The most Lanczos vectors to keep, at least 4, where memory is short: probes take over after so many
            steps. Where the trace is known, Lanczos goes on by thick restarts. None: as many as the products allow.
        whiten: The vector s (d,) by which a method scales its directions, u = s ⊙ z: everything here is then of DHD,
            D = diag(s), instead of H, ``trace_operator`` and ``trace`` included.
        weights: Of a module's data: see ``MeanLoss``.
        weight_decay: λ of a penalty (λ/2)‖x‖² on a module's parameters, whose curvature is λI.
        trust: Whether a module, its loss and its data are taken for one function of x without being tried, and torch's
            derivatives for that function's; ``reason`` then says so.

    **Memory.** At most ``max_basis`` + ``BESIDE`` vectors (d,) are alive at a time, beside the module, x, and the
    graphs and activations of the pieces of the data.

    Returns:
        κ, its interval and all that it is made of. Where the interval asked for is not reached, ``reached`` is
        False, the interval is still valid, and ``reason`` says what would be needed.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, the checkpoint is of another run, or the
            device has no room for the Lanczos vectors; it says for how many it has.

    Source: Krylov-aware deflation: Chen and Hallman 2023; κ: DeComFL, Assumption 4.
    """
    own = {"weights": weights, "weight_decay": weight_decay, "trust": trust}
    operator = base = _operator(model, loss, data, own)
    settings = Settings(rtol, confidence, max_products, products, seed, trace, max_basis)
    if trace is not None:
        require(trace_operator is None, "trace_operator", "be None where the trace is known", trace_operator)
    if trace_operator is not None:
        require(trace_operator.d == operator.d, "trace_operator", f"have dimension {operator.d}", trace_operator.d)
    if whiten is not None:
        operator = WhitenedOperator(operator, whiten)
        trace_operator = trace_operator and WhitenedOperator(trace_operator, whiten)
    # Only where no probes follow does Lanczos go on by restarts once the basis is full.
    restarts = trace is not None and settings.basis < settings.limit
    require_room(operator, settings.basis, BESIDE, restarts=restarts)
    with enabled():
        run = _Run(operator, settings, trace_operator)
        file = Checkpoint(checkpoint, run.identity)
        if state := file.load():
            run.restore(*state)
        while not run.finished:
            run.advance()
            file.save(run.state, last=run.finished)
            if on_progress is not None:
                on_progress(run.progress())
    result = run.result()
    # What an operator or its objective has to say of itself goes behind the reason.
    inner = getattr(base, "inner", base)  # of a whitened one
    remarks = [getattr(each, "remark", "") for each in (getattr(inner, "objective", None), inner)]
    return dataclasses.replace(result, reason="; ".join([result.reason, *filter(None, remarks)]))


def _operator(
    model: Operator | nn.Module, loss: LossFunction | None, data: Data | None, own: dict[str, Any]
) -> Operator:
    """H of the arguments of ``effective_rank``."""
    if isinstance(model, nn.Module):
        if data is None:
            raise InputError("data must be given with a module, got None")
        return HessianOperator(MeanLoss(model, loss, data, **own))
    require(loss is None and data is None, "loss and data", "be None with an operator, which has them", "something")
    given = [name for name, value in own.items() if value]
    require(not given, " and ".join(given), "be given with a module, and not with an operator", given)
    known = all(hasattr(model, name) for name in ("matvec", "quad", "d", "dtype", "device"))
    require(known, "model", "be a torch module or an operator (hessian.Operator)", type(model).__name__)
    return model
