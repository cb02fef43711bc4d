"""How large a reproduction is. Only ``full`` has the paper's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from decomfl_lab.llm.family import PretrainConfig

__all__ = [
    "FIG2_SCALES",
    "FIG3_SCALES",
    "HESSIAN_SCALES",
    "MEMORY_SIZES",
    "PRETRAINED",
    "PROJECTION_SCALES",
    "SIZES_SCALES",
    "THEORY_SCALES",
    "Fig2Scale",
    "Fig3Scale",
    "HessianScale",
    "ProjectionScale",
    "SizesScale",
    "TheoryScale",
    "kind",
]


def kind(scale: str) -> str:
    """What a scale is, beside the paper."""
    return "the paper's own sizes" if scale == "full" else "reduced, not the paper's"


@dataclass(frozen=True, kw_only=True)
class Fig2Scale:
    """Sizes of the runs behind Figure 2.

    Attributes:
        M: Clients.
        m: Sampled clients a round (a tenth of M, as in the paper).
        batch_size: B.
        local_rounds: Left panel: rounds for each K.
        perturbation_rounds: Right panel: rounds for every P.
        fedavg_rounds: Rounds of the baseline.
        seeds: Seeds of the left panel in the "as-plotted" reading (the others use the first).
        eta_factor: Factor on the learning rate of DeComFL in the "as-plotted" reading. With batches 64 times
            smaller than the authors' their η (times 1/(1 - β) = 10) diverges within 100 local steps; a smaller
            one does not.
        evaluations: About how many evaluations a run gets.
        test_examples: Held-out images of an evaluation; 0 for all.
    """

    M: int
    m: int
    batch_size: int
    local_rounds: Mapping[int, int]
    perturbation_rounds: int
    fedavg_rounds: int
    seeds: tuple[int, ...]
    eta_factor: float = 1.0
    evaluations: int = 20
    test_examples: int = 0


FIG2_SCALES: dict[str, Fig2Scale] = {
    "smoke": Fig2Scale(
        M=20,
        m=2,
        batch_size=8,
        local_rounds={1: 24, 4: 12, 10: 6},
        perturbation_rounds=8,
        fedavg_rounds=10,
        seeds=(0,),
        eta_factor=0.3,
        evaluations=6,
        test_examples=1000,
    ),
    "default": Fig2Scale(
        M=50,
        m=5,
        batch_size=8,
        local_rounds={1: 110, 4: 46, 10: 23},
        perturbation_rounds=26,
        fedavg_rounds=40,
        seeds=(0, 1, 2),
        eta_factor=0.3,
        evaluations=12,
        test_examples=1000,
    ),
    "full": Fig2Scale(
        M=100,
        m=10,
        batch_size=256,
        local_rounds={1: 2000, 4: 2000, 10: 2000},
        perturbation_rounds=1500,
        fedavg_rounds=1000,
        seeds=(0, 1, 2),
        evaluations=100,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Fig3Scale:
    """Sizes of the runs behind Figure 3 and the top-k figure.

    Attributes:
        M: Clients.
        m: Sampled clients a round (a tenth of M, as in the paper).
        batch_size: B of DeComFL.
        rounds: Of DeComFL; P doubles after a sixth, a third and two thirds of them, as 500, 1000 and 2000 are of 3000.
        baseline_batch: B of the first-order methods.
        baseline_rounds: Of the first-order methods.
        seeds: Seeds of every series.
        anneal: Whether η falls where P doubles, as in the authors' logs. Short runs are too far from their end for it.
        evaluations: About how many evaluations a run of DeComFL gets.
        baseline_evaluations: The same for the first-order methods.
        test_examples: Held-out images of an evaluation; 0 for all.
    """

    M: int
    m: int
    batch_size: int
    rounds: int
    baseline_batch: int
    baseline_rounds: int
    seeds: tuple[int, ...] = (0,)
    anneal: bool = False
    evaluations: int = 20
    baseline_evaluations: int = 20
    test_examples: int = 0


FIG3_SCALES: dict[str, Fig3Scale] = {
    "smoke": Fig3Scale(
        M=10,
        m=1,
        batch_size=2,
        rounds=6,
        baseline_batch=8,
        baseline_rounds=6,
        evaluations=6,
        baseline_evaluations=6,
        test_examples=200,
    ),
    "default": Fig3Scale(
        M=20,
        m=2,
        batch_size=8,
        rounds=38,
        baseline_batch=32,
        baseline_rounds=24,
        evaluations=14,
        baseline_evaluations=12,
        test_examples=1000,
    ),
    "full": Fig3Scale(
        M=100,
        m=10,
        batch_size=256,
        rounds=3000,
        baseline_batch=32,
        baseline_rounds=1000,
        anneal=True,
        evaluations=150,
        baseline_evaluations=1000,
    ),
}


@dataclass(frozen=True, kw_only=True)
class ProjectionScale:
    """Sizes of the runs behind the projection figure.

    Attributes:
        M: Clients.
        m: Sampled clients a round.
        batch_size: B.
        K: Local steps.
        P: Directions a step.
        rounds: Of every run.
        factors: Learning rates, in multiples of Figure 2's at the same scale.
        seeds: Seeds of every series.
        evaluations: About how many evaluations a run gets.
        test_examples: Held-out images of an evaluation; 0 for all.
    """

    M: int
    m: int
    batch_size: int
    K: int
    P: int
    rounds: int
    factors: tuple[float, ...]
    seeds: tuple[int, ...]
    evaluations: int = 12
    test_examples: int = 0


PROJECTION_SCALES: dict[str, ProjectionScale] = {
    "smoke": ProjectionScale(
        M=20,
        m=2,
        batch_size=8,
        K=1,
        P=10,
        rounds=8,
        factors=(1.0, 10.0),
        seeds=(0,),
        evaluations=4,
        test_examples=1000,
    ),
    "default": ProjectionScale(
        M=50,
        m=5,
        batch_size=8,
        K=4,
        P=10,
        rounds=28,
        factors=(0.1, 0.3, 1.0, 3.0, 10.0),
        seeds=(0,),
        test_examples=1000,
    ),
    "full": ProjectionScale(
        M=100,
        m=10,
        batch_size=256,
        K=4,
        P=20,
        rounds=1000,
        factors=(0.1, 0.3, 1.0, 3.0, 10.0),
        seeds=(0, 1, 2),
        evaluations=50,
    ),
}

MEMORY_SIZES: dict[str, tuple[int, ...]] = {
    "smoke": (100_000, 1_000_000),
    "default": (100_000, 1_000_000, 10_000_000, 100_000_000),
    "full": (100_000, 1_000_000, 10_000_000, 100_000_000),
}
"""Parameters of the models whose memory is measured."""


@dataclass(frozen=True, kw_only=True)
class HessianScale:
    """Sizes behind the figure of Hessian eigenvalues. The paper names none of them.

    Attributes:
        model: The small ResNet.
        steps: First-order steps after which the spectrum is taken, ascending.
        batch_size: Examples of a step.
        lr: Of Adam.
        examples: Training images whose mean loss has the Hessian.
        lanczos: Steps of the Lanczos space whose eigenvalues are known one by one.
        probes: Random probes of the rest.
        probe_steps: Lanczos steps of each.
        gauss_newton: Products for κ of the Gauss-Newton matrix.
    """

    model: str
    steps: tuple[int, ...]
    batch_size: int
    lr: float
    examples: int
    lanczos: int
    probes: int
    probe_steps: int
    gauss_newton: int


HESSIAN_SCALES: dict[str, HessianScale] = {
    "smoke": HessianScale(
        model="resnet8-half-bn",
        steps=(0, 20, 40),
        batch_size=32,
        lr=0.003,
        examples=32,
        lanczos=8,
        probes=2,
        probe_steps=4,
        gauss_newton=10,
    ),
    "default": HessianScale(
        model="resnet8-half-bn",
        steps=(0, 50, 150, 300),
        batch_size=32,
        lr=0.003,
        examples=128,
        lanczos=12,
        probes=3,
        probe_steps=8,
        gauss_newton=16,
    ),
    "full": HessianScale(
        model="resnet20-bn",
        steps=(0, 100, 500, 2000, 10_000),
        batch_size=128,
        lr=0.003,
        examples=5000,
        lanczos=60,
        probes=10,
        probe_steps=20,
        gauss_newton=60,
    ),
}


@dataclass(frozen=True, kw_only=True)
class TheoryScale:
    """Sizes behind the figures of bounds beside truths.

    Attributes:
        per_decade: Values of d and κ a decade.
        runs: Simulated runs a point.
        factor: Between two values of m, P or K.
        cells: Of a step-size map along each axis.
        models: Trained on scikit-learn's digits.
        rounds: Of their training.
        seeds: Of their training.
    """

    per_decade: int
    runs: int
    factor: int
    cells: int
    models: tuple[str, ...]
    rounds: int
    seeds: tuple[int, ...]


THEORY_SCALES: dict[str, TheoryScale] = {
    "smoke": TheoryScale(per_decade=1, runs=8, factor=16, cells=8, models=("logistic",), rounds=30, seeds=(0,)),
    "default": TheoryScale(
        per_decade=2, runs=64, factor=4, cells=28, models=("logistic", "mlp"), rounds=300, seeds=(0, 1)
    ),
    "full": TheoryScale(
        per_decade=4, runs=1000, factor=2, cells=60, models=("logistic", "mlp"), rounds=10_000, seeds=(0, 1, 2)
    ),
}


PRETRAINED: dict[str, dict[str, PretrainConfig]] = {
    "smoke": {
        "opt-0.3m": PretrainConfig(size="opt-0.3m", vocabulary=2048, steps=20, batch=4),
        "opt-1m": PretrainConfig(size="opt-1m", vocabulary=2048, steps=6, batch=4),
    },
    "default": {
        "opt-0.3m": PretrainConfig(size="opt-0.3m", vocabulary=2048, steps=1000, batch=4),
        "opt-1m": PretrainConfig(size="opt-1m", vocabulary=2048, steps=600, batch=4),
        "opt-4m": PretrainConfig(size="opt-4m", vocabulary=2048, steps=200, batch=2),
    },
    "full": {},
}
"""The small OPT models that fine-tuning begins with, by scale and size; other models are the hub's."""


@dataclass(frozen=True, kw_only=True)
class SizesScale:
    """Sizes of the runs behind the scale figure.

    Attributes:
        models: From small to large: sizes of ``PRETRAINED``, or names of the hub.
        rounds: Of every run.
        batch_size: B.
        seeds: Of every model.
        eval_every: Rounds between two evaluations.
        test_examples: Of an evaluation; 0 for all.
        examples: Training prompts whose mean loss has the Gauss-Newton matrix.
        products: With it, for κ at one x.
        etas: The learning rate η of each model, where it is given.
        share: Else, of the largest η that Theorem 2 admits by the model's own curvature; one for all models.
    """

    models: tuple[str, ...]
    rounds: int
    batch_size: int
    seeds: tuple[int, ...]
    eval_every: int
    test_examples: int
    examples: int
    products: int
    etas: Mapping[str, float] = field(default_factory=dict)
    share: float = 1.0


SIZES_SCALES: dict[str, SizesScale] = {
    "smoke": SizesScale(
        models=("opt-0.3m", "opt-1m"),
        rounds=6,
        batch_size=4,
        seeds=(99,),
        eval_every=2,
        test_examples=60,
        examples=16,
        products=6,
        share=0.1,
    ),
    "default": SizesScale(
        models=("opt-0.3m", "opt-1m", "opt-4m"),
        rounds=60,
        batch_size=16,
        seeds=(99, 100),
        eval_every=5,
        test_examples=300,
        examples=64,
        products=8,
        share=0.1,
    ),
    "full": SizesScale(
        models=("facebook/opt-125m", "facebook/opt-350m", "facebook/opt-1.3b", "facebook/opt-2.7b"),
        rounds=2000,
        batch_size=16,
        seeds=(99,),
        eval_every=25,
        test_examples=0,
        examples=64,
        products=8,
        etas={
            "facebook/opt-125m": 5e-6,
            "facebook/opt-350m": 3e-6,
            "facebook/opt-1.3b": 2e-6,
            "facebook/opt-2.7b": 2e-6,
        },
    ),
}
