"""The appendix's scale figure: language models of several sizes on SST-2, the rounds that they need, and their κ."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy import stats
from torch import Tensor

from decomfl_lab.errors import DivergedError
from decomfl_lab.language.finetuning import task_module
from decomfl_lab.layout import Layout
from decomfl_lab.progress import Progress
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import METRICS_FILE
from decomfl_lab.runs.run import Run, load_run
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.provenance import provenance
from figures.sizes import size_figure
from figures.style import series_styles
from paper_repro.language_models.language import kappa_of, pretraining, prompts_loss
from paper_repro.workflow import series
from paper_repro.workflow.data import digest_of, missing
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes, settings
from paper_repro.workflow.runs import Job, Report, Result, Work
from paper_repro.workflow.scales import Sizes
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome, limits
from paper_repro.workflow.verdicts.claim_verdicts import judged
from paper_repro.workflow.verdicts.measures import TOLERANCE, binomial_error
from theory.notation.setting import effective_factor

TASK: Final = "sst2"
TESTED: Final = 872  # its test examples
LIMITS: Final = limits("sizes")
"""share of the fall of a run's test loss to its lowest is where it counts as converged; it has to be there in the share
settled of its rounds, or it was cut off while it fell. A fall is more than scatter times that of the last evaluations
(of some tens the lowest is lower by two to three by chance), and than the share learnt of the loss at the start.
"""
LAST: Final = 0.2
"""The last share of the evaluations: their mean accuracy is a run's result, their scatter the measure of a fall."""
CONFIDENCE: Final = 0.95
START, END = "kappa-start.csv", "kappa-end.csv"


def jobs(options: Options) -> list[Work]:
    """A work for each size; none where the task or the text is not available here."""
    size = options.scale.sizes
    recipes = options.scale.pretrained
    if missing([TASK], size.models, recipes):
        return []
    return [of_model(size, model, pretraining(recipes[model]) if model in recipes else None) for model in size.models]


def of_model(size: Sizes, model: str, begins: Work | None = None) -> Work:
    """The runs of one model, which is pretrained before, or one of the hub."""
    job = Job(configuration(size, model), {}, f"sizes: {model}", begins)
    return Work(
        title=job.title,
        function=_runs_and_kappas,
        arguments={"size": size, "model": model, "job": job},
        needs=job.needs,
        data=partial(digest_of, job.config),
        layers=("hessian", "theory"),
        cost=len(size.seeds) * job.cost,  # of the runs; the products for κ are a small part
    )


def configuration(size: Sizes, model: str, eta: float = 1.0, seed: int = 0) -> TrainConfig:
    """A run's configuration: the authors' but for its length, batch and η."""
    return series.configuration(series.PATTERNS["sizes"], vars(size), model=model, lr=eta, seed=seed)


def _runs_and_kappas(folder: Path, report: Report, size: Sizes, model: str, job: Job) -> Result:
    """κ where the model begins, η by it, a run for every seed, and κ where that ends.

    ``what`` is evaluation (tables of runs) or kappa (``at`` start or end of the runs). What is there is kept, and a run
    goes on where it was; of one that diverges there are only the rows up to there.
    """
    job = job.placed(folder.parent)
    dataset = job.dataset()
    objective = prompts_loss(task_module(job.config, dataset), dataset, chunk=32, examples=size.examples)

    def kappa(name: str, x: Callable[[], Tensor]) -> dict[str, float]:
        """κ and what goes with it at an x, from the file of this name, which is written first if it is missing."""
        path = folder / name
        if not path.exists():
            row = {"d": objective.d, **kappa_of(objective, x(), size.products)}
            write_atomically(path, pd.DataFrame([row]).to_csv(index=False))
        return {str(key): float(value) for key, value in pd.read_csv(path).iloc[0].items()}

    start = kappa(START, lambda: objective.x)
    # Where η is not given, it is a share c of the largest that Theorem 2 admits, by G before training:
    #     η = c / (4 L ρ_κ),    ρ_κ = 1 + (κ + 1)/P,    L = λ_max
    P = job.config.perturbations
    rho = effective_factor("gaussian", d=int(start["d"]), P=P, kappa=start["kappa"])
    eta = float(size.etas.get(model, size.share / (4 * start["lambda_max"] * rho)))
    frames = [pd.DataFrame([start]).assign(what="kappa", at="start")]
    total = len(size.seeds) * size.rounds
    for n, seed in enumerate(size.seeds):
        config, out = configuration(size, job.config.model, eta, seed), folder / str(seed)
        done, diverged = n * size.rounds, False

        def shifted(at: Progress, done: int = done) -> None:
            report(replace(at, round=done + at.round, rounds=total))

        try:
            Run(config, dataset=dataset).train(out=out, on_round=shifted)
        except DivergedError:
            diverged = True
        rows = pd.read_csv(out / METRICS_FILE)
        frames.append(rows.assign(what="evaluation", seed=seed, diverged=int(diverged)))
        if not diverged:

            def trained(out: Path = out) -> Tensor:
                module = load_run(out, dataset).model
                return Layout.of(module).flatten(module)

            frames.append(pd.DataFrame([kappa(f"{seed}/{END}", trained)]).assign(what="kappa", at="end", seed=seed))
    rows_of_model = pd.concat(frames, ignore_index=True).assign(model=model, d=int(start["d"]), eta=eta)
    return rows_of_model, provenance(dataset)


# --- what is made of the rows -----------------------------------------------------------------------------------------


def run_table(rows: pd.DataFrame, size: Sizes) -> pd.DataFrame:
    """One row a run, from the smallest model on.

    Returns:
        Columns model, d, eta, seed; loss_start (round 0) and loss_lowest; fell, whether the difference is more than
        ``LIMITS.scatter`` times the scatter of the last evaluations and ``LIMITS.learnt`` of the start; learnt, whether
        besides the accuracy ends ``TOLERANCE`` standard errors of a difference above where it began, as it does not
        where a run collapses to one answer; rounds, the first at which the test loss has done ``LIMITS.share`` of its
        fall, between evaluations by a straight line, NaN unless it learnt; settled, whether that was within
        ``LIMITS.settled`` of the run; accuracy_start (zero-shot), calibrated_start and accuracy_end (mean over the last
        evaluations); accuracy_rounds, the first evaluation within a standard error of that end; wire_bytes a client.
    """
    evaluations = rows[rows["what"] == "evaluation"].sort_values(["d", "model", "seed", "round"])
    examples = size.test_examples or TESTED
    table = []
    for _, run in evaluations.groupby(["model", "seed"], sort=False):
        first, last = run.iloc[0], run.tail(max(2, round(LAST * len(run))))
        start, lowest = float(first["test_loss"]), float(run["test_loss"].min())
        least = max(LIMITS.scatter * float(last["test_loss"].std(ddof=1)), LIMITS.learnt * start)
        fell = not first["diverged"] and start - lowest > least
        accuracy = float(last["test_accuracy"].mean())
        began = float(first[["test_accuracy", "calibrated_accuracy"]].max())
        margin = TOLERANCE * math.hypot(binomial_error(accuracy, examples), binomial_error(began, examples))
        learnt = fell and accuracy - began > margin
        rounds, r, loss = math.nan, run["round"].to_numpy(), run["test_loss"].to_numpy()
        if learnt:
            # The first place where the line through the evaluations comes down to the level, below its beginning.
            level = start - LIMITS.share * (start - lowest)
            n = int(np.argmax(loss <= level))
            part = (loss[n - 1] - level) / (loss[n - 1] - loss[n])
            rounds = float(r[n - 1] + part * (r[n] - r[n - 1]))
        near_end = run[run["test_accuracy"] >= accuracy - math.sqrt(accuracy * (1 - accuracy) / examples)]
        table.append(
            {
                "model": first["model"],
                "d": int(first["d"]),
                "eta": float(first["eta"]),
                "seed": int(first["seed"]),
                "loss_start": start,
                "loss_lowest": lowest,
                "fell": fell,
                "learnt": learnt,
                "rounds": rounds,
                "settled": learnt and rounds <= LIMITS.settled * float(r[-1]),
                "accuracy_start": float(first["test_accuracy"]),
                "calibrated_start": float(first["calibrated_accuracy"]),
                "accuracy_end": accuracy,
                "accuracy_rounds": float(near_end["round"].iloc[0]) if len(near_end) else math.nan,
                "wire_bytes": 4 * float(run["wire_scalars"].iloc[-1]),
            }
        )
    return pd.DataFrame(table)


def kappa_table(rows: pd.DataFrame) -> pd.DataFrame:
    """κ with its interval, one row for each model (from the smallest on), seed and ``at``: start or end of runs."""
    found = rows[rows["what"] == "kappa"].sort_values(["d", "model", "seed"])
    return found[["model", "d", "at", "seed", "kappa", "low", "high", "lambda_max"]]


def claims(rows: pd.DataFrame, size: Sizes, words: str) -> list[ClaimOutcome]:
    """The claims about the scale figure; not tested where there are no rows."""
    runs = pd.DataFrame(columns=["model", "d", "rounds", "settled", "accuracy_end"])
    kappas = pd.DataFrame(columns=["at", "d", "kappa", "low", "high"])
    if len(rows):
        runs, kappas = run_table(rows, size), kappa_table(rows)
    # The exponent s of rounds ∝ d^s, by least squares over runs that converged, with its ends; NaN where few did.
    slope = dict.fromkeys(("s", "low", "high"), math.nan)
    if len(runs) >= 3 and runs["settled"].all() and runs["d"].nunique() > 1:
        line = stats.linregress(np.log(runs["d"]), np.log(runs["rounds"]))
        half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(runs) - 2) * line.stderr)
        slope = {"s": float(line.slope), "low": float(line.slope) - half, "high": float(line.slope) + half}
    by_model = runs.groupby("model", sort=False)
    rounds = by_model["rounds"].apply(lambda of_model: of_model.mean(skipna=False)).round()  # evaluated now and then
    # The error is that of the test examples, which runs share.
    accuracy = by_model["accuracy_end"].mean().rename("accuracy").reset_index()
    n = size.test_examples or TESTED
    # The intervals at every d, over the runs; at the start there is one of all.
    kappa = kappas.groupby(["at", "d"]).agg(kappa=("kappa", "mean"), low=("low", "min"), high=("high", "max"))
    frames = {
        "runs": runs,
        "rounds": rounds.reset_index(),
        "slope": pd.DataFrame([slope]),
        "accuracies": accuracy.assign(error=[binomial_error(float(end), n) for end in accuracy["accuracy"]]),
        "kappa": kappa.reset_index(),
    }
    return judged("sizes", words, frames)


# --- the part ---------------------------------------------------------------------------------------------------------


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure, its tables and its verdicts; without rows, what to set."""
    size = options.scale.sizes
    words = options.scale.words("sizes")
    outcomes = claims(rows, size, words)
    given = ", ".join(f"{eta:g}" for eta in size.etas.values())
    beside = settings("sizes", size.told(rates=given or f"{size.share:g}/(4 L ρ_κ), see below"))
    if rows.empty:
        nothing = f"Not computed: {missing([TASK], size.models, options.scale.pretrained) or 'no rows'}."
        return made("sizes", outcomes, settings=beside, notes=[nothing])
    runs, kappas = run_table(rows, size), kappa_table(rows)
    evaluations = rows[rows["what"] == "evaluation"]
    start = evaluations.groupby(["model", "seed"])["test_loss"].transform("first")
    curves = evaluations.assign(series=evaluations["model"], relative_loss=evaluations["test_loss"] / start)
    # One point a model: rounds of the runs that settled, κ at the start.
    settled = runs[runs["settled"]].groupby("model")["rounds"]
    points = kappas[kappas["at"] == "start"].set_index("model")[["d", "kappa", "low", "high"]]
    points = points.rename(columns={"low": "kappa_low", "high": "kappa_high"})
    points = points.join(settled.agg(rounds="mean", rounds_low="min", rounds_high="max")).rename_axis("series")
    figure = partial(
        size_figure,
        curves,
        points.reset_index(),
        series_styles(runs["model"]),
        share=LIMITS.share,
        title="DeComFL on SST-2 with language models of several sizes",
        caption=caption("sizes", scale=words, data=provenance[0]["data"].split("; ")[0]),
    )
    here = {**vars(LIMITS), **vars(size), "share_of_fall": LIMITS.share, "last": LAST, "confidence": CONFIDENCE}
    by_rule, by_authors, *others = notes("sizes", **here)
    # One row a model: means over seeds.
    means = runs.drop(columns="seed").groupby(["model", "d"], sort=False).mean()
    table = means.round({"rounds": 0, "accuracy_rounds": 0}).reset_index()
    for at, there in kappas.groupby("at", sort=False):
        shown = {
            str(model): f"{of_model['kappa'].mean():.4g} [{of_model['low'].min():.4g}, {of_model['high'].max():.4g}]"
            for model, of_model in there.groupby("model")
        }
        table[f"κ at the {at}"] = table["model"].map(shown)
    table = table.rename(columns={name: f"{name} (share of runs)" for name in ("fell", "learnt", "settled")})
    return made(
        "sizes",
        outcomes,
        {"sizes": figure},
        {"sizes": runs, "sizes-kappa": kappas, "sizes-curves": curves},
        settings=beside,
        notes=[by_authors if size.etas else by_rule, *others],
        table=table,
    )
