"""Figures of the theory: bounds beside what is true, and beside a model really trained."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pandas as pd
import torch
from torch import Tensor

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.progress import Progress
from decomfl_lab.storage.provenance import provenance
from figures.theory import FLAT_FROM, dimension_free, speed_ups, step_sizes, training
from paper_repro.workflow.data import digest_named
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import Sizes
from paper_repro.workflow.series import PATTERNS, configuration
from paper_repro.workflow.verdicts.claim_table import CLAIMS, ClaimOutcome
from paper_repro.workflow.verdicts.claim_verdicts import evaluated, judged
from theory.bounds import statement, sweeps
from theory.checks.landscape import Landscape
from theory.notation.setting import Setting, Variant
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
    layers = ("hessian", "theory")
    tables = [
        Work(title=f"theory: {name}", function=_swept, arguments={"name": name, "size": size}, layers=layers)
        for name in sweeps.SWEEPS
    ]
    trained = [
        Work(
            title=f"theory: {model} beside its bound",
            function=beside_bounds,
            arguments={"size": size, "model": model},
            data=partial(digest_named, "digits"),
            layers=layers,
            # A pass is worth about a fiftieth of one of the MNIST CNN.
            cost=0.02 * size.rounds * len(size.seeds) * 5 * 21 * 16 + 1e5,
        )
        for model in size.models
    ]
    return tables + trained


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
            caption=caption("theory-training", scale=words, seeds=", ".join(map(str, size.seeds)), margin=MARGIN),
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
    frames_of_claims = {
        "far": by_d[by_d["d"] >= FLAT_FROM],
        "quadratics": pd.concat([by_d, frames["by-kappa"]]),
        "rounds": rounds,
        "promised": promised.assign(ratio=promised["measured"] / promised["stated bound"]),
        "moving": rounds[rounds["series"] == "measured"].dropna(subset="eta"),
    }
    # Of each trained model what was measured over the bounds, by rounds, beside its constants.
    frame = frames["training"]
    runs = frame[frame["kind"] == "run"].groupby(["model", "round"])["value"].max()
    bounds = {form: frame[frame["series"] == f"Theorem 2, {form}"].set_index(["model", "round"]) for form in _BOTH}
    table = pd.DataFrame({"admitted": bounds["stated"]["admitted"].astype(bool)})
    table = table.assign(**{form: runs / bound["value"] for form, bound in bounds.items()}).reset_index()
    constants = frame[frame["kind"] == "constant"].pivot(index="model", columns="series", values="value")
    trained = []
    for model, rows in table.merge(constants.reset_index(), on="model").groupby("model", sort=False):
        of_model = replace(CLAIMS["theory.trained-*"], id=f"theory.trained-{model}")
        trained.append(replace(evaluated(of_model, {"trained": rows}), subject=str(model)))
    return judged("theory", words, frames_of_claims, trained)


# --- what is computed, and what is trained ----------------------------------------------------------------------------


def _swept(folder: Path, report: Report, name: str, size: Sizes) -> Result:  # noqa: ARG001 (of the protocol)
    """A table of exact values, one of ``SWEEPS``."""
    rows = []
    sizes = sweeps.SweepSizes(size.per_decade, size.runs, size.factor, size.cells)
    for done, row in enumerate(sweeps.SWEEPS[name](sizes), 1):
        rows.append(row)
        report(Progress(done, done + 1))
    return pd.DataFrame(rows).assign(sweep=name), {}


_PILOT: Final = 100  # seed of the run by whose constants η is chosen
MARGIN: Final = 0.5
"""The share of the largest η by the constants along the pilot run that is taken: other runs meet other constants."""


def beside_bounds(folder: Path, report: Report, size: Sizes, model: str) -> Result:  # noqa: ARG001 (of the protocol)
    """DeComFL on a small model, at the η that Theorem 2 allows by constants estimated on the way, beside its bounds.

    A pilot run, η and μ by the constants along it, the runs, bounds by those along the first. Rows are of kind run,
    constant and bound; the model is trained on scikit-learn's digits.
    """
    dataset = load_dataset("digits")
    config = configuration(PATTERNS["theory"], {}, model=model, rounds=size.rounds)
    runs, done = len(size.seeds) + 1, 0

    def follow(landscape: Landscape) -> Iterator[Tensor]:
        """x_0, x_1, ..., each (d,), while its federation is trained; x is written to by the next round."""
        nonlocal done
        for _ in range(size.rounds):
            yield landscape.federation.x
            loss = landscape.federation.advance()
            done += 1
            report(Progress(done, runs * size.rounds + 1, loss))

    start = Landscape(config.but(seed=_PILOT), dataset)
    at_start = _chosen(start.constants([start.federation.x]), 1.0)
    pilot = Landscape(start.config.but(lr=cast(float, at_start.eta), mu=at_start.mu), dataset)
    # Rounds at which the constants are measured.
    measured = {0, size.rounds // 10, size.rounds // 3, size.rounds - 1}
    passed = [x.clone() for r, x in enumerate(follow(pilot)) if r in measured]
    chosen = _chosen(pilot.constants(passed), MARGIN)
    rows: list[dict[str, Any]] = []
    along = chosen
    for seed in size.seeds:
        run = Landscape(config.but(lr=cast(float, chosen.eta), mu=chosen.mu, seed=seed), dataset)
        total, path = 0.0, []
        for r, x in enumerate(follow(run)):
            total += float((run.whole.gradient(x) ** 2).sum())
            rows.append({"kind": "run", "series": "measured", "seed": seed, "round": r + 1, "value": total / (r + 1)})
            if r in measured:
                path.append(x.clone())
        if seed == size.seeds[0]:
            along = replace(run.constants(path), eta=chosen.eta, mu=chosen.mu)
    resolved = torch.finfo(torch.float32).eps * along.D / along.mu
    numbers = {**along.values, "L at the start of the pilot": at_start.L, "rounding of g": resolved}
    rows += [{"kind": "constant", "series": name, "value": value} for name, value in numbers.items()]
    # Every bound at the run's own η, after some numbers of rounds; Theorem 1 also at the η that it allows itself.
    counts = sweeps.grid(1, size.rounds, 8)
    single = statement("theorem-1-single")
    for series, bound, eta in (
        ("Theorem 2, corrected", statement("theorem-2"), along.eta),
        ("Theorem 2, stated", statement("theorem-2", "stated"), along.eta),
        ("Theorem 1, corrected", single, single.step_sizes(along).largest),
    ):
        admitted = bound.admits(along.at(cast(float, eta)))
        for R in counts:
            value = sum(bound.bound(replace(along, R=R, eta=eta)))
            rows.append(
                {"kind": "bound", "series": series, "round": R, "value": value, "eta": eta, "admitted": admitted}
            )
    return pd.DataFrame(rows).assign(sweep="training", model=model), provenance(dataset)


def _chosen(constants: Setting, margin: float) -> Setting:
    """The setting at a share of corrected Theorem 2's largest η, at the μ whose terms are as large as all others."""
    theorem = statement("theorem-2")
    setting = constants.at(margin * theorem.step_sizes(constants).largest)
    return replace(setting, mu=theorem.best_mu(setting, share=1.0))
