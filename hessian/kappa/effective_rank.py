"""``hessian.effective_rank``: κ of a model, a loss and data; of a result once more, and of a tangent kernel."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError, known_options, require, require_finite_positive
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.function import enabled
from decomfl_lab.storage.outside import SavedEstimate
from hessian.kappa.interval.by_walks import PartRun
from hessian.kappa.interval.estimation import _Run
from hessian.kappa.result import EffectiveRank, EffectiveRankProgress
from hessian.kappa.settings import Settings
from hessian.operators.matrices import as_operator
from hessian.operators.options import CurvatureKeywords
from hessian.operators.selection import Source, curvature
from hessian.operators.transforms.whitening import WhitenedOperator
from hessian.resumption import Checkpoint
from hessian.spectrum.lanczos import coefficients, dot


@known_options
def effective_rank(
    model: Source,
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
    trace_operator: Any = None,
    trace: float | None = None,
    max_basis: int | None = Settings.max_basis,
    part: str = Settings.part,
    within: float | None = None,
    overlap: bool = False,
    **options: Unpack[CurvatureKeywords],
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

    With ``products`` = B there are 2B/3 steps, fewer on a bulk, and probes for the rest: the start vector is the scout,
    as one more costs small budgets more than it saves. Where B ≥ d, the d steps make κ exact.

    Args:
        model: See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``. Every example weighs the same, while ``lab.train`` weighs every client the same unless
            told weighting="examples". With one batch a client, weights=[1.0] * len(clients) gives κ of the clients'
            mean.
        rtol: Half-width of κ's interval to reach, relative to κ.
        confidence: The confidence of the interval, in (0, 1).
        max_products: The most products to spend.
        products: The number of products to spend instead (fewer only if the Lanczos vectors span everything).
        seed: The seed of everything random, 0..2**64-1.
        checkpoint: A file that is written along the way (a tenth of the time at most), and gone on from if it is there,
            to the same bits. With another ``rtol``, ``confidence`` or number of products it is refined: Lanczos goes on
            where the new half-width needs more steps, at the price of two products, and the probes begin anew.
        on_progress: A function that is called after every product.
        trace_operator: An operator of the same trace whose quadratic forms are cheaper (the Gauss-Newton matrix of
            a piecewise-affine network): all probes are taken with it, tr(QGQᵀ) by k more forms, and H gives only θ.
        trace: tr(H) where it is known (``gauss_newton_trace``): then there are only Lanczos steps, until ‖H‖₂ is
            known to rtol/5, or ``products`` of them, and the interval is that of ‖H‖₂ alone.
        max_basis: The most Lanczos vectors to keep, at least 4, where memory is short. After so many steps probes take
            over where ‖H‖₂ is known well enough, and else Lanczos goes on by thick restarts. None: as many as the
            products allow, and the free memory has room for (``reason`` says where it has not).
        part: κ of which part: "signed", tr(H)/‖H‖₂; "positive", Σ max(λ, 0)/λ_max, which Assumption 4 needs (one matrix
            above every Hessian of a ball is above their positive parts); or "absolute", Σ|λ|/‖H‖₂. The last two take
            walks of several products in place of each probe (``PartRun``), and their interval has room for what those
            do not tell: much where most eigenvalues are very near 0, as a language model's are.
        within: The most seconds to spend, from now on. They become the most products, by the time of the first ones, so
            that the interval is valid; a run that goes on has its own.
        overlap: Whether to tell how much of ∇f lies along the outer eigenvectors, for a gradient and its vector (d,).
        options: Which matrix, of which parameters, in which dtype: those of ``curvature``. ``whiten`` is about
            ``trace_operator`` and ``trace`` too.

    **Memory.** See ``forecast.held``; graphs and activations of the pieces of the data come beside it.

    Returns:
        κ, its interval and all that it is made of. Where the interval asked for is not reached, ``reached`` is
        False, the interval is still valid, and ``reason`` says what would be needed.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, the checkpoint is of another run, or the
            device has no room for the Lanczos vectors; it says for how many it has.

    Source: Krylov-aware deflation: Chen and Hallman 2023; κ: DeComFL, Assumption 4.
    """
    began = time.perf_counter()
    if within is not None:
        require_finite_positive("within", within)
    operator, whiten = curvature(model, loss, data, **options), options.get("whiten")
    settings = Settings(rtol, confidence, max_products, products, seed, trace, max_basis, part)
    if part != "signed":
        known = trace is None and trace_operator is None
        require(known, "trace and trace_operator", f"be None for the {part} part, which they say nothing of", "one")
    if trace is not None:
        require(trace_operator is None, "trace_operator", "be None where the trace is known", trace_operator)
    if trace_operator is not None:
        trace_operator = as_operator(trace_operator)
        require(trace_operator.d == operator.d, "trace_operator", f"have dimension {operator.d}", trace_operator.d)
        trace_operator = trace_operator if whiten is None else WhitenedOperator(trace_operator, whiten)
    g = operator.gradient() if overlap else None
    if overlap and g is None:
        raise InputError(f"overlap must be False with a matrix that is no model's, got {operator.name}")
    with enabled():
        # Without negative eigenvalues all parts are one, and the signed one takes the fewest products.
        walks = part != "signed" and not operator.semidefinite
        run = PartRun(operator, settings) if walks else _Run(operator, settings, trace_operator)
        file = Checkpoint(checkpoint, run.identity, SavedEstimate)
        if state := file.load():
            run.restore(*state)
        while not run.finished:
            run.advance()
            if within is not None:
                run.keep_within(began + within - time.perf_counter())
            file.save(run.state, last=run.finished)
            if on_progress is not None:
                on_progress(run.progress())
        result = run.result()
        if g is not None:
            # The share (uᵀg)²/‖g‖² of g along each Ritz vector u.
            s = torch.linalg.eigh(run.krylov.projected).eigenvectors
            squares = (torch.tensor(coefficients(run.krylov.vectors, g), dtype=s.dtype) @ s).square()
            shares = tuple((squares / (dot(g, g) or 1.0)).tolist())
            result = dataclasses.replace(result, gradient_shares=shares)
    return dataclasses.replace(result, reason="; ".join([result.reason, *operator.remarks]))


def refine(
    found: EffectiveRank | Mapping[str, Any],
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    rtol: float = Settings.rtol,
    max_products: int = Settings.max_products,
    checkpoint: Path | None = None,
    **options: Unpack[CurvatureKeywords],
) -> EffectiveRank:
    """A result with a narrower interval: of the same part, seed and confidence.

    From its ``checkpoint`` it goes on (see ``effective_rank``). A result itself, or its JSON, has no vectors: then the
    products of its Lanczos steps are taken again, from the same seed. Of two intervals that one looks at in turn, each
    holds κ as often as it says, and both together less often.

    Args:
        found: The result, or what its ``to_json`` gave.
        model: What it was measured of, as are ``loss``, ``data`` and ``options``. See ``curvature``.
        loss: See there.
        data: See there.
        rtol: See ``effective_rank``; below the half-width that the result has.
        max_products: The most products to spend, with those in the checkpoint.
        checkpoint: The result's own file, of this very model and data. Without it only the matrix's name, dimension and
            dtype are compared: what comes is of the model given here.
        options: Which matrix.

    Raises:
        InputError: If the matrix has another name, dimension or dtype; otherwise see ``effective_rank``.
    """
    known = found.to_json() if isinstance(found, EffectiveRank) else found
    whole = isinstance(known, Mapping) and {"confidence", "seed", "operator", "d", "dtype"} <= known.keys()
    require(whole, "found", "be a result of effective_rank, or what its to_json gave", type(found).__name__)
    operator = curvature(model, loss, data, **options)
    given = {"operator": operator.name, "d": operator.d, "dtype": str(operator.dtype).removeprefix("torch.")}
    measured = {name: known.get(name) for name in given}
    require(given == measured, "model", f"be what the result is of, {measured}", given)
    if known.get("kappa") and known.get("interval"):
        reach = max(abs((math.inf if end is None else end) / known["kappa"] - 1) for end in known["interval"])
        require(rtol < reach, "rtol", f"be below {reach:.3g}, the half-width that the result has", rtol)
    require(checkpoint is None or Path(checkpoint).exists(), "checkpoint", "be the result's own file", checkpoint)
    return effective_rank(
        operator,
        rtol=rtol,
        confidence=known["confidence"],
        max_products=max_products,
        seed=known["seed"],
        checkpoint=checkpoint,
        part=known.get("part", Settings.part),
    )


def half_square(outputs: Tensor, _: Tensor) -> Tensor:
    """½ Σ_v f_v², the mean over the examples: its Gauss-Newton matrix is JᵀJ/N, whatever the targets are."""
    return 0.5 * outputs.square().sum() / len(outputs)


def tangent_kernel(model: Source, data: Data, **options: Any) -> EffectiveRank:
    """The effective rank r = tr K/‖K‖ of the tangent kernel K = JJᵀ of all outputs, with a confidence interval.

    K has a row for each example and class. JᵀJ (d, d) has the same eigenvalues above 0 and is N times the Gauss-Newton
    matrix of ½ Σ_v f_v², the mean over N examples: κ of that matrix, which is printed, is r, and its trace and norm are
    those of K/N. A product with it is one with J and one with Jᵀ; neither J nor K is ever there.

        r = hessian.tangent_kernel(model, (images, labels), rtol=0.05)
        r.kappa                          # 7.9
        theory.KERNEL_NORM               # what P directions make of the kernel, by r

    Args:
        model: The torch module.
        data: Its data, as ``curvature`` takes them; the labels do not matter.
        options: Those of ``effective_rank`` but ``operator``, ``loss`` and ``part``.

    Raises:
        InputError: See ``effective_rank``; if ``operator``, ``loss`` or ``part`` is given.

    Source: docs/two-theories.md.
    """
    for name in ("operator", "loss", "part"):
        if name in options:
            raise InputError(f"{name} must stay unset: a tangent kernel has its own, got {options[name]!r}")
    return effective_rank(model, half_square, data, operator="gauss-newton", **options)
