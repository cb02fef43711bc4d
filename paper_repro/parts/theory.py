"""Figures of the theory: bounds beside what is true, and beside a model really trained."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pandas as pd

from figures.theory import FLAT_FROM, dimension_free, speed_ups, step_sizes, training
from paper_repro.parts import sweeps
from paper_repro.workflow.builder import made
from paper_repro.workflow.claims import CLAIMS, ClaimOutcome
from paper_repro.workflow.expression import evaluated, judged
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Work
from theory.bounds import statement
from theory.notation.setting import Variant
from theory.notation.symbols import LETTERS
from theory.statements.statement import inequality

_BOTH: Final[tuple[Variant, ...]] = ("stated", "corrected")
_CONSTANTS: Final = [
    *("d", "L at the start of the pilot", "L", "kappa", "sigma", "sigma_G", "D", "eta", "mu"),
    *("rounding of g", "rho", "rho_kappa"),
]
"""What is shown of a trained model."""


def jobs(options: Options) -> list[Work]:
    """The sweeps of each figure, and the training of each model."""
    size = options.scale.theory
    return [
        *(sweeps.sweep(name, size) for name in sweeps.SWEEPS),
        *(sweeps.training(size, model) for model in size.models),
    ]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """Four figures, the constants of the trained models, and the verdicts."""
    size = options.scale.theory
    frames = {str(name): frame.dropna(axis=1, how="all") for name, frame in rows.groupby("sweep", sort=False)}
    words = f"{options.scale.words(named=False)}"
    run = ", ".join(f"{name} = {value}" for name, value in sweeps.RUN.items() if name != "distribution")
    # The measured averages (mean and range over seeds) and the bounds, a panel a model.
    frame = frames["training"]
    runs = frame[frame["kind"] == "run"].groupby(["model", "round"])["value"]
    measured = runs.agg(value="mean", low="min", high="max").reset_index().assign(series="measured")
    bounds = frame[frame["kind"] == "bound"][["model", "series", "round", "value"]]
    trained = pd.concat([measured, bounds], ignore_index=True)
    # The constants of the trained models, a row each.
    constants = frame[frame["kind"] == "constant"].pivot(index="model", columns="series", values="value")
    d = constants["d"].map("{:,.0f}".format)
    figures = {
        "theory-dimension": partial(
            dimension_free,
            frames["by-d"],
            frames["by-kappa"],
            frames["simulated"],
            title="What grows with d, and what with κ",
            caption=caption("theory-dimension", run=run, runs=size.runs),
        ),
        "theory-rounds": partial(
            speed_ups,
            frames["rounds"],
            ends={"P": (sweeps.SMALL_D, "P = d"), "K": (sweeps.SMALL_D, "K = d/P")},
            title=f"Rounds to (1/R) Σ_r E‖∇f(x_r)‖² ≤ {sweeps.EPSILON:g}",
            caption=caption("theory-rounds", d=sweeps.SMALL_D, noise=sweeps.LOUD, clients=sweeps.CLIENTS),
        ),
        "theory-step-sizes": partial(
            step_sizes,
            frames["step-sizes"],
            title="Step sizes of Theorem 1: what binds, and how much is given away",
            caption=caption("theory-step-sizes", d=sweeps.MAP_D),
        ),
        "theory-training": partial(
            training,
            trained.assign(panel=trained["model"] + ", d = " + trained["model"].map(d)),
            title="Bounds beside real training",
            caption=caption(
                "theory-training", scale=words, seeds=", ".join(map(str, size.seeds)), margin=sweeps.MARGIN
            ),
        ),
    }
    shown = constants[_CONSTANTS].rename_axis(columns=None).rename(columns=LETTERS).reset_index()
    return made(
        "theory",
        claims(frames, words),
        figures,
        {"theory-constants": shown, **{f"theory-{name}": frame for name, frame in frames.items()}},
        more=("Linear speed-ups: where they hold and where they end", "The conditions on η", "A real model"),
        formulas={
            f"Theorem {number}, {variant}": inequality(statement(f"theorem-{number}", variant))
            for number, variant in itertools.product((1, 2), _BOTH)
        },
        notes=notes("theory"),
        table=shown,
        facts={"scale": words},
    )


def claims(frames: Mapping[str, pd.DataFrame], words: str) -> list[ClaimOutcome]:
    """The claims about rates, judged by the sweeps."""
    by_d, rounds = frames["by-d"], frames["rounds"]
    promised = rounds.pivot_table(index=["knob", "at", "noise"], columns="series", values="rounds").reset_index()
    over = {
        "far": by_d[by_d["d"] >= FLAT_FROM],
        "quadratics": pd.concat([by_d, frames["by-kappa"]]),
        "rounds": rounds,
        "promised": promised.assign(ratio=promised["measured"] / promised["stated bound"]),
        "moving": rounds[rounds["series"] == "measured"].dropna(subset="eta"),
    }
    return judged("theory", words, over, _trained(frames["training"]))


def _trained(frame: pd.DataFrame) -> Iterator[ClaimOutcome]:
    """The claim about each trained model: what was measured over the bounds, by rounds, beside its constants."""
    runs = frame[frame["kind"] == "run"].groupby(["model", "round"])["value"].max()
    bounds = {form: frame[frame["series"] == f"Theorem 2, {form}"].set_index(["model", "round"]) for form in _BOTH}
    table = pd.DataFrame({"admitted": bounds["stated"]["admitted"].astype(bool)})
    table = table.assign(**{form: runs / bound["value"] for form, bound in bounds.items()}).reset_index()
    constants = frame[frame["kind"] == "constant"].pivot(index="model", columns="series", values="value")
    for model, own in table.merge(constants.reset_index(), on="model").groupby("model", sort=False):
        of_model = replace(CLAIMS["theory.trained-*"], id=f"theory.trained-{model}")
        yield replace(evaluated(of_model, {"trained": own}), subject=str(model))
