"""Runs at the edge of stability: trained round by round, with the curvature's trace and top measured on the way."""

import copy
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.objectives.evaluation import right_share
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.progress import Progress
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Materials, Prepared
from decomfl_lab.storage.provenance import provenance
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import GaussNewtonOperator
from hessian.operators.gauss_newton_trace import gauss_newton_trace
from hessian.operators.mean_loss import MeanLoss
from paper_repro.workflow import series
from paper_repro.workflow.data import digest_of
from paper_repro.workflow.runs import Job, Report, Result, Work
from paper_repro.workflow.scales import Sizes

PAPER_STEP: Final = 0.01  # η/(1 − β) of Figure 2 as plotted: η = 0.001, β = 0.9
PROJECTION, DIFFERENCES = "projection", "finite differences"
_METHODS: Final = {PROJECTION: "decomfl-projection", DIFFERENCES: "decomfl"}
Point = Mapping[str, Any]
_TEST_IMAGES, _HESSIAN_IMAGES = 5, 7  # purposes of ``fixed_choice``; 5 is what ``train`` evaluates on
_SEED: Final = 0
POINT: Final = ["estimator", "batch", "factor", "P", "K", "beta"]
"""A point's settings: estimator (of ``_METHODS``), B, η/(1 − β) in multiples of ``PAPER_STEP``, P, K, momentum β."""
USUAL: Final[Point] = {name: series.PATTERNS["edge"].values[name] for name in POINT if name != "batch"}
"""Those of Figure 2, but for B, which a scale says."""


def points(size: Sizes) -> list[Point]:
    """The lines through Figure 2's setting: in η/(1 − β), B, P, K and β; and in η/(1 − β) with a smaller batch."""
    rows = [values for row in series.ROWS["edge"] for values in series.values_of(row, vars(size))]
    named = [{name: values[name] for name in POINT} for values in rows]
    return [point for n, point in enumerate(named) if point not in named[:n]]


def at_point(size: Sizes, point: Point, seed: int) -> Work:
    """A run at one point with one seed; it has a result however it ends."""
    config = configuration(size, point, seed)
    title = (
        "edge of stability: {estimator}, B={batch}, {factor:g} times Figure 2's step, P={P}, K={K}, β={beta:g}, "
        "seed {seed}"
    ).format(**point, seed=seed)
    return Work(
        title=title,
        function=_measured,
        arguments={"config": config, "examples": size.examples, "products": size.products},
        labels={**point, "seed": seed},
        data=partial(digest_of, config),
        layers=("hessian",),
        # A product is worth about twelve passes.
        cost=Job(config, {}, title).cost + 12 * size.measurements * size.products * size.examples,
    )


def configuration(size: Sizes, at: Point, seed: int) -> TrainConfig:
    """The run: Figure 2's settings as plotted, but for those of the point; ``steps`` local steps in all."""
    rounds = size.steps // at["K"]
    config = series.configuration(
        series.PATTERNS["edge"],
        {**vars(size), **at},
        rounds=rounds,
        eval_every=max(1, rounds // size.measurements),
        lr=(1 - at["beta"]) * (at["factor"] * PAPER_STEP),
        seed=seed,
    )
    return config.but(_METHODS[at["estimator"]])


def _measured(folder: Path, report: Report, config: TrainConfig, examples: int, products: int) -> Result:  # noqa: ARG001
    """A row a measurement: at x_0 and every so many rounds, up to the last round or to where losses are lost.

    norm is ‖x‖, drawn the examples that a step is made of, m·B or all that the clients have.
    """
    dataset = Materials(config).dataset()
    start = Prepared.of(config, dataset)
    federation, module, layout = start.federation(), start.module, start.layout
    # The mean losses of so many training images, and of two halves of five times as many others.
    workspace = copy.deepcopy(module)
    chosen = fixed_choice(len(dataset.train_labels), 6 * examples, _HESSIAN_IMAGES)
    half = (len(chosen) - examples) // 2
    parts = chosen[:examples], chosen[examples : examples + half], chosen[examples + half : examples + 2 * half]
    landscape, *halves = [
        MeanLoss(workspace, cross_entropy, [(dataset.train_images[part], dataset.train_labels[part])], chunk=125)
        for part in parts
    ]
    held_out = fixed_choice(len(dataset.test_labels), config.test_examples or len(dataset.test_labels), _TEST_IMAGES)
    inputs, targets = dataset.test_images[held_out], dataset.test_labels[held_out]
    rows: list[dict[str, Any]] = []
    drawn = config.sampled * min(config.batch_size, len(dataset.train_labels) // config.clients)
    diverged, losses = False, [math.nan]
    for r in range(config.rounds + 1):
        if r % config.eval_every == 0 or r == config.rounds:
            layout.bind(module, federation.x)
            accuracy, loss = mean_losses(module, [right_share, cross_entropy], inputs, targets)
            row: dict[str, Any] = {
                "round": r,
                "test_accuracy": accuracy,
                "test_loss": loss,
                "train_loss": float(np.mean(losses)),
            }
            # ‖∇f‖² and the variance of an example's gradient, unbiased, from the gradients of halves of n images each:
            # E⟨g_A, g_B⟩ = ‖∇f‖² and E‖g_A − g_B‖²/2 = variance/n. Nothing where they are not finite any more.
            with suppress(InputError):
                one, other = (each.gradient(federation.x).double() for each in halves)
                row |= {"signal": float(one @ other), "variance": half * float(((one - other) ** 2).sum()) / 2}
            # tr(G) and the positive Ritz values of the Gauss-Newton matrix G at x, likewise. The network is piecewise
            # affine, so tr(G) = tr(H), up to rounding; and G ⪰ 0, as the theory has it of H.
            with suppress(InputError):
                G = GaussNewtonOperator(landscape, federation.x)
                trace = gauss_newton_trace(G)
                values = reversed(effective_rank(G, products=products, trace=trace, seed=_SEED).ritz_values)
                row |= {"trace": trace, "ritz": " ".join(f"{value:.6g}" for value in values if value > 0)}
            rows.append(row | {"norm": float(federation.x.norm()), "drawn": drawn})
            losses = []
        if r == config.rounds:
            break
        try:
            losses.append(federation.advance())
        except DivergedError:
            diverged = True
            break
        report(Progress(r + 1, config.rounds, losses[-1], accuracy, federation.ledger.bytes / 4 / federation.ledger.M))
    return pd.DataFrame(rows).assign(diverged=diverged), provenance(dataset)
