"""``hessian.by_layer``: κ of every layer's diagonal block of H, and its share of the trace."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError, known_options, plural, require_int
from decomfl_lab.noise import derive_seed
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.storage.files import save_picture
from hessian.estimate import Estimate
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.result import EffectiveRank
from hessian.kappa.settings import Settings
from hessian.operators.operator import BlockOperator
from hessian.operators.options import CurvatureKeywords
from hessian.operators.selection import Source, curvature
from hessian.parts import PARTS
from hessian.readings import Reading, Reported


@dataclass(frozen=True)
class LayerRank:
    """What was measured of one layer."""

    layer: str  # the name of the module that has the parameters; "" for the model itself
    # The block's trace by tr(H), with its standard error. Negative traces make shares below 0 and above 1.
    share: Estimate
    rank: EffectiveRank  # κ, trace and norm of the layer's block, each with its interval


@dataclass(frozen=True, kw_only=True, repr=False)
class ByLayer(Reported):
    """κ of every layer's block of H, and its share of the trace."""

    operator: str  # the name of the matrix
    d: int  # its dimension
    rows: tuple[LayerRank, ...]  # the layers, in the module's order
    trace: Estimate  # tr(H), the sum of the blocks' traces, with its standard error
    products: int  # the products with H of all layers together
    confidence: float  # the confidence of each interval on its own
    reason: str  # what was not tried of model, loss and data; empty where all was

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """A reading a layer; see ``Reported``."""
        name, whole, *_ = PARTS[self.rows[0].rank.part]
        of = "" if whole.startswith("tr") else " of the blocks"  # which add up to H's own for the trace alone
        total = f"{whole}{of} = {self.trace.value:.4g} ± {self.trace.stderr:.2g}"
        spent = f"{plural(self.products, 'product')} in all; intervals of {100 * self.confidence:g} %"
        readings, short = [], 0
        for row in self.rows:
            rank = row.rank
            share = f"{100 * row.share.value:.1f} ± {100 * row.share.stderr:.1f} % of {whole}"
            words = f"{share}, ‖·‖₂ ≥ {rank.norm:.4g}, d = {rank.d:,}, {plural(rank.products, 'product')}"
            words += "" if rank.reached else "; wider than asked for"
            short += not rank.reached
            readings.append(Reading(row.layer or "(model)", rank.kappa, *rank.interval, words))
        wide = f"wider than asked for: {plural(short, 'layer')}; allow more products" if short else ""
        remark = "; ".join(filter(None, [wide, self.reason]))
        return f"{name} of the {self.operator} by layer, d = {self.d:,}: {total}; {spent}", readings, remark

    def plot(self, path: str | Path) -> Path:
        """Draw κ and its interval of every layer beside its share of the trace, to a file (.png, .pdf, .svg); its path.

        Raises:
            InputError: If the file cannot be written, or has another ending.
        """
        from hessian.kappa.picture import picture_of_layers  # here, since matplotlib takes long to load

        return save_picture(picture_of_layers(self), Path(path))


@known_options
def by_layer(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    depth: int | None = None,
    rtol: float = Settings.rtol,
    confidence: float = Settings.confidence,
    max_products: int = Settings.max_products,
    products: int | None = Settings.products,
    seed: int = Settings.seed,
    max_basis: int | None = Settings.max_basis,
    part: str = Settings.part,
    on_layer: Callable[[str, int, int], None] | None = None,
    **options: Unpack[CurvatureKeywords],
) -> ByLayer:
    """κ of every layer: of the diagonal block of H that belongs to the parameters of one module.

    A product with a block costs one with H, so this takes about as many estimates of κ as there are layers; ``depth``
    makes fewer. A block of no more dimensions than products is exact. Model, loss and data, and the derivatives, are
    tried once, for all of H.

    Args:
        model: The module, or an operator that is made of one. See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``.
        depth: The parts of a module's name that tell layers apart: with 2, "layers.3.attention.query" is in "layers.3".
            By default every module that has parameters of its own is a layer.
        rtol: Half-width of each κ's interval to reach, relative to κ.
        confidence: The confidence of each interval on its own, in (0, 1).
        max_products: The most products to spend on a layer.
        products: The number of products to spend on each layer instead.
        seed: The seed of everything random, 0..2**64-1.
        max_basis: The most Lanczos vectors to keep; as many as the products allow by default.
        part: κ of which part of each block: "signed", "positive" or "absolute".
        on_layer: A function that is called before every layer, with its name, its number from 0 on, and how many there
            are.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If H is not of a module's parameters; otherwise see ``effective_rank``.
    """
    if depth is not None:
        require_int("depth", depth, 1)
    operator = curvature(model, loss, data, **options)
    layout = operator.layout
    if layout is None:
        raise InputError(f"model must be a module, or an operator of a module's parameters, got {operator.name}")
    # Where the parameters of every layer lie in x.
    layers: dict[str, list[slice]] = {}
    begin = 0
    for name, size in zip(layout.names, layout.sizes, strict=True):
        module = name.rpartition(".")[0]
        layers.setdefault(".".join(module.split(".")[:depth]), []).append(slice(begin, begin + size))
        begin += size
    ranks: dict[str, EffectiveRank] = {}
    for number, (layer, places) in enumerate(layers.items()):
        if on_layer is not None:
            on_layer(layer, number, len(layers))
        ranks[layer] = effective_rank(
            BlockOperator(operator, places),
            rtol=rtol,
            confidence=confidence,
            max_products=max_products,
            products=products,
            seed=derive_seed(seed, number),  # else layers of one size would have the same probes
            max_basis=max_basis,
            part=part,
        )
    # The sum of independent estimates.
    traces = [rank.trace for rank in ranks.values()]
    error = math.hypot(*(estimate.stderr for estimate in traces))
    total = math.fsum(estimate.value for estimate in traces)
    whole = Estimate(total, error, sum(estimate.samples for estimate in traces))
    rows = []
    for layer, rank in ranks.items():
        # The share s = t/T of the trace, T = t + rest, and its standard error to the first order:
        # ds = ((1 − s) dt − s drest)/T.
        trace = rank.trace
        share = math.nan
        stderr = math.nan
        if whole.value != 0:
            share = trace.value / whole.value
            rest = math.sqrt(max(whole.stderr**2 - trace.stderr**2, 0.0))
            stderr = math.hypot((1 - share) * trace.stderr, share * rest) / abs(whole.value)
        rows.append(LayerRank(layer, Estimate(share, stderr, trace.samples), rank))
    return ByLayer(
        operator=operator.name,
        d=operator.d,
        rows=tuple(rows),
        trace=whole,
        products=sum(rank.products for rank in ranks.values()),
        confidence=confidence,
        reason="; ".join(operator.remarks),
    )
