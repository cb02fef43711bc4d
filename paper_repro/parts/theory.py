"""Figures of the theory: bounds beside what is true, and beside a model really trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import pandas as pd

from figures.theory import FLAT_FROM, dimension_free, speed_ups, step_sizes, training
from paper_repro.parts import sweeps
from paper_repro.parts.sweeps import (
    CLIENTS,
    EPSILON,
    KAPPA,
    LOUD,
    MAP_D,
    MARGIN,
    REACH,
    RUN,
    SMALL_D,
    SWEEPS,
)
from paper_repro.workflow.claims import ClaimOutcome, judged, limits
from paper_repro.workflow.measures import verdict_of, verdict_of_countings
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Section, caption, notes
from paper_repro.workflow.runs import Work
from theory.bounds import statement
from theory.notation.setting import Variant
from theory.notation.symbols import LETTERS
from theory.statements.statement import inequality

__all__ = ["claims", "jobs", "make"]

LIMITS: Final = limits("theory")
_BOTH: Final[tuple[Variant, ...]] = ("stated", "corrected")
_EXACT: Final = f"exact, d = {SMALL_D}, ε = {EPSILON:g}"


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
    rounds = frames["rounds"]
    outcomes = [
        _flat(frames["by-d"]),
        _bound_on_quadratics(pd.concat([frames["by-d"], frames["by-kappa"]])),
        *(_speed_up(rounds, knob) for knob in REACH),
        _printed_rounds(rounds),
        _rates(rounds),
        *_trained(frames["training"]),
    ]
    return judged("theory", words, outcomes)


def _flat(frame: pd.DataFrame) -> ClaimOutcome:
    far = frame[frame["d"] >= FLAT_FROM]
    spread = {
        series: float(rows["value"].max() / rows["value"].min() - 1)
        for series, rows in far.groupby("series")
        if str(series).startswith("measured")
    }
    first = far[far["series"] == "Theorem 1, corrected"]["value"]
    measured = {
        "largest d": int(far["d"].max()),
        **{f"spread, {str(series).removeprefix('measured, ')}": value for series, value in spread.items()},
        "growth of Theorem 1's bound": float(first.max() / first.min()),
    }
    verdict = verdict_of(max(spread.values()) <= LIMITS.flat)
    return ClaimOutcome("theory.dimension-free", verdict, measured, f"exact, quadratics with κ = {KAPPA}")


def _bound_on_quadratics(frame: pd.DataFrame) -> ClaimOutcome:
    measured = frame[frame["series"].str.startswith("measured")]
    ratio = {variant: float((measured["value"] / measured[variant]).max()) for variant in ("stated", "corrected")}
    told = {f"largest measured / {variant}, at one η": value for variant, value in ratio.items()}
    words = "exact, spectra of κ equal eigenvalues and of one large one"
    return ClaimOutcome(
        "theory.theorem-2-on-quadratics", verdict_of(ratio["stated"] <= 1), {**told, "problems": len(measured)}, words
    )


def _speed_up(rounds: pd.DataFrame, knob: str) -> ClaimOutcome:
    """Whether rounds fall at least half as much as the knob grows, by both kinds of noise."""
    own = rounds[(rounds["knob"] == knob) & (rounds["series"] == "measured")]
    top = int(own["at"].max())
    table = own.pivot(index="at", columns="noise", values="rounds")
    gained = {str(noise): float(table[noise].iloc[0] / table[noise].iloc[-1]) for noise in table}
    verdict = verdict_of_countings([gain >= LIMITS.linear * top for gain in gained.values()])
    measured = {f"times fewer rounds, {noise} alone": gain for noise, gain in gained.items()}
    return ClaimOutcome(f"theory.speed-up-{knob}", verdict, measured, f"{_EXACT}, {knob} = 1 .. {top:,}")


def _printed_rounds(rounds: pd.DataFrame) -> ClaimOutcome:
    table = rounds.pivot_table(index=["knob", "at", "noise"], columns="series", values="rounds")
    ratio = table["measured"] / table["stated bound"]
    worst = cast(tuple[str, int, str], ratio.idxmax())
    measured = {
        "most rounds needed / promised": float(ratio.max()),
        f"at {worst[0]} of": int(worst[1]),
        "the same by corrected Theorem 1": float((table["measured"] / table["corrected bound"]).max()),
    }
    return ClaimOutcome("theory.rounds-by-theorem-1", verdict_of(bool((ratio <= 1).all())), measured, _EXACT)


def _rates(rounds: pd.DataFrame) -> ClaimOutcome:
    """How the best η moves with P and K."""
    found = rounds[rounds["series"] == "measured"].pivot_table(index="at", columns=["knob", "noise"], values="eta")
    moved = {}
    for knob in ("P", "K"):
        for noise in ("σ", "σ_G"):
            eta = found[knob, noise].dropna()
            moved[knob, noise] = float(eta.iloc[-1] / eta.iloc[0])
    grows = [moved["P", noise] > LIMITS.moved for noise in ("σ", "σ_G")]
    shrinks = [moved["K", noise] < 1 / LIMITS.moved for noise in ("σ", "σ_G")]
    measured = {f"best η at the largest {knob} / at 1, {noise} alone": value for (knob, noise), value in moved.items()}
    return ClaimOutcome("theory.learning-rates", verdict_of_countings(grows + shrinks), measured, _EXACT)


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
