"""Figures of the theory: bounds beside what is true, and beside a model really trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from figures.theory import FLAT_FROM, dimension_free, speed_ups, step_sizes, training
from paper_repro.parts import sweeps
from paper_repro.parts.sweeps import (
    CLIENTS,
    EPSILON,
    LOUD,
    MAP_D,
    MARGIN,
    RUN,
    SMALL_D,
    SWEEPS,
)
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.expression import judged
from paper_repro.workflow.measures import verdict_of
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section, caption, notes
from paper_repro.workflow.runs import Work
from theory.bounds import statement
from theory.notation.setting import Variant
from theory.notation.symbols import LETTERS
from theory.statements.statement import inequality

__all__ = ["claims", "jobs", "make"]

_BOTH: Final[tuple[Variant, ...]] = ("stated", "corrected")


def jobs(options: Options) -> list[Work]:
    """The sweeps of each figure, and the training of each model."""
    size = options.scale.theory
    return [
        *(sweeps.sweep(name, size) for name in SWEEPS),
        *(sweeps.training(size, model) for model in size.models),
    ]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """Four figures, the constants of the trained models, and the verdicts."""
    size = options.scale.theory
    frames = {str(name): frame.dropna(axis=1, how="all") for name, frame in rows.groupby("sweep", sort=False)}
    words = f"{options.scale.words(named=False)}"
    run = ", ".join(f"{name} = {value}" for name, value in RUN.items() if name != "distribution")
    dimension = dimension_free(
        frames["by-d"],
        frames["by-kappa"],
        frames["simulated"],
        title="What grows with d, and what with κ",
        caption=caption("theory-dimension", run=run, runs=size.runs),
    )
    speed = speed_ups(
        frames["rounds"],
        ends={"P": (SMALL_D, "P = d"), "K": (SMALL_D, "K = d/P")},
        title=f"Rounds to (1/R) Σ_r E‖∇f(x_r)‖² ≤ {EPSILON:g}",
        caption=caption("theory-rounds", d=SMALL_D, noise=LOUD, clients=CLIENTS),
    )
    maps = step_sizes(
        frames["step-sizes"],
        title="Step sizes of Theorem 1: what binds, and how much is given away",
        caption=caption("theory-step-sizes", d=MAP_D),
    )
    # The measured averages (mean and range over seeds) and the bounds, a panel a model.
    frame = frames["training"]
    runs = frame[frame["kind"] == "run"].groupby(["model", "round"])["value"]
    measured = runs.agg(value="mean", low="min", high="max").reset_index().assign(series="measured")
    bounds = frame[frame["kind"] == "bound"][["model", "series", "round", "value"]]
    trained = pd.concat([measured, bounds], ignore_index=True)
    d = frame[(frame["kind"] == "constant") & (frame["series"] == "d")].set_index("model")["value"]
    trained = trained.assign(panel=[f"{model}, d = {d[model]:,.0f}" for model in trained["model"]])
    training_figure = training(
        trained,
        title="Bounds beside real training",
        caption=caption("theory-training", scale=words, seeds=", ".join(map(str, size.seeds)), margin=MARGIN),
    )
    figures = {
        "theory-dimension": dimension,
        "theory-rounds": speed,
        "theory-step-sizes": maps,
        "theory-training": training_figure,
    }
    # The constants of the trained models, a row each.
    shown = ["d", "L at the start of the pilot", "L", "kappa", "sigma", "sigma_G", "D", "eta", "mu"]
    shown += ["rounding of g", "rho", "rho_kappa"]
    constants = frame[frame["kind"] == "constant"].pivot(index="model", columns="series", values="value")
    constants = constants[shown].rename_axis(columns=None).rename(columns=LETTERS).reset_index()
    section = Section(
        id="theory",
        figure=dimension,
        more_figures={
            "Linear speed-ups: where they hold and where they end": speed,
            "The conditions on η": maps,
            "A real model": training_figure,
        },
        formulas={
            f"Theorem {number}, {variant}": inequality(statement(f"theorem-{number}", variant))
            for number in (1, 2)
            for variant in _BOTH
        },
        notes=notes("theory"),
        table=constants,
        facts={"scale": words},
    )
    tables = {"theory-constants": constants, **{f"theory-{name}": frame for name, frame in frames.items()}}
    return Made(section=section, claims=claims(frames, words), figures=figures, tables=tables)


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
    for model, own in frame.groupby("model", sort=False):
        runs = own[own["kind"] == "run"].groupby("round")["value"].max()
        stated = own[own["series"] == "Theorem 2, stated"].set_index("round")
        corrected = own[own["series"] == "Theorem 2, corrected"].set_index("round")
        ratio = (runs / stated["value"]).dropna()
        admitted = bool(stated["admitted"].astype(bool).all())
        verdict = verdict_of(bool((ratio <= 1).all()), tested=admitted)
        constants = own[own["kind"] == "constant"].set_index("series")["value"]
        measured = {
            "most measured / stated": float(ratio.max()),
            "measured / corrected, at the end": float((runs / corrected["value"]).dropna().iloc[-1]),
            **{LETTERS.get(name, name): float(constants[name]) for name in ("L", "kappa", "sigma", "sigma_G", "eta")},
        }
        yield ClaimOutcome(f"theory.trained-{model}", verdict, measured, subject=str(model))
