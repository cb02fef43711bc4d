"""``decomfl kappa``: the effective rank of a trained model's curvature, with its interval.

What loads torch is imported where it is used, so that the help comes at once.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hessian
from decomfl_lab.errors import InputError, plural, require, require_choice, require_finite_positive, require_int
from decomfl_lab.files import held_checkpoint
from decomfl_lab.interrupts import telling
from decomfl_lab.pictures import require_picture, save_picture
from decomfl_lab.plugins import is_own
from hessian.commands.option import option

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decomfl_lab.runs.descent import Descent
    from hessian.named import TrainedModel

__all__ = ["kappa"]

TRACES = ("probes", "gauss-newton", "exact")
OPERATORS = ("hessian", "gauss-newton", "fisher", "smoothed")
DTYPES = ("float32", "float64")

FORETOLD = 10
"""Products from which on the number that is needed, and the time, are foretold well enough to say so."""
LONG = 0.2
"""Hours from which on the time is told."""


def kappa(
    source: Annotated[Path | None, typer.Argument(show_default=False)] = None,
    *,
    model: Annotated[
        str | None,
        option(
            "The model: a name that `decomfl train decomfl --help` lists; your own as module:function, called with "
            "nothing, which returns a torch.nn.Module; a folder of transformers (with config.json); with --task also a "
            "GGUF file or a name of the hub."
        ),
    ] = None,
    data: Annotated[
        str | None,
        option(
            "The data: a name that `decomfl train decomfl --help` lists; your own as module:function, called with "
            "nothing, which returns (inputs, targets), a Dataset, a DataLoader, or a list of these or of batches; or "
            "(any of these, test), of which test is left out."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        option(
            "Your own loss as module:function, called with (outputs, targets) of a batch, which returns their mean "
            "loss, a scalar tensor: e.g. torch.nn.functional:mse_loss. [default: cross-entropy]"
        ),
    ] = None,
    task: Annotated[
        str | None,
        option("The task whose prompts a language model answers, one that `decomfl train decomfl --help` lists."),
    ] = None,
    task_data: Annotated[
        str, option("The folder of the task's files. [default: $DECOMFL_DATA/<task>]", panel="Model and data")
    ] = "",
    train_steps: Annotated[
        int | None,
        option(
            "First-order steps before κ is measured; 0 is the start, not a trained model. [default: 300; 0 for "
            "your own model]",
            panel="Model and data",
        ),
    ] = None,
    optimizer: Annotated[
        str, option("The optimizer of those steps: sgd, adam.", "adam", panel="Model and data")
    ] = "adam",
    lr: Annotated[float, option("The learning rate of those steps.", 1e-3, panel="Model and data")] = 1e-3,
    batch_size: Annotated[int, option("Examples a step.", 64, panel="Model and data")] = 64,
    operator: Annotated[
        str,
        option(
            "The matrix: hessian; gauss-newton (positive semi-definite); fisher (empirical); smoothed (what a "
            "zeroth-order method with --mu sees).",
            "hessian",
        ),
    ] = "hessian",
    examples: Annotated[int, option("Training examples of the loss, a fixed random choice; 0 takes all.", 1000)] = 1000,
    weight_decay: Annotated[
        float,
        option("Add the curvature λI of a penalty (λ/2)‖x‖² to the loss's.", 0.0, panel="Model and data"),
    ] = 0.0,
    trust: Annotated[
        bool,
        option(
            "Take model, loss and data for one function of the parameters, and torch's derivatives for its, without "
            "trying it.",
            False,
            panel="Model and data",
        ),
    ] = False,
    parameters: Annotated[
        str,
        option(
            "Only these parameters count, as names or prefixes joined by commas. [default: all]", panel="Model and data"
        ),
    ] = "",
    normalisation: Annotated[
        str,
        option(
            "What BatchNorm takes: eval (statistics of a calibration set, or its own) or batch (those of the "
            "examples).",
            "eval",
            panel="Model and data",
        ),
    ] = "eval",
    rtol: Annotated[float, option("Stop when the interval of κ is within ± this share of it.", 0.05)] = 0.05,
    confidence: Annotated[
        float, option("The confidence of every interval.", 0.95, panel="How closely, and by what")
    ] = 0.95,
    max_products: Annotated[
        int, option("Stop after so many products H·v in any case.", 200, panel="How closely, and by what")
    ] = 200,
    products: Annotated[
        int,
        option(
            "Take exactly so many products, whatever the error; 0 does as --rtol says.",
            0,
            panel="How closely, and by what",
        ),
    ] = 0,
    seed: Annotated[int, option("The seed of the random vectors, and of a model trained here.", 0)] = 0,
    dtype: Annotated[
        str, option(f"The dtype of the computation: {', '.join(DTYPES)}.", "float32", panel="How closely, and by what")
    ] = "float32",
    trace: Annotated[
        str,
        option(
            "How tr H is found: probes; gauss-newton (probes of that matrix, where it has the same trace: "
            "networks piecewise affine in each weight); exact (its finite sum over examples and outputs, no sampling).",
            "probes",
            panel="How closely, and by what",
        ),
    ] = "probes",
    whiten: Annotated[
        Path | None,
        option(
            "Measure κ of DHD, D = diag(s), as a method sees it that scales its directions by s: a run of hiso, its "
            "checkpoint, or a .npy or .safetensors file of d numbers.",
            panel="Other matrices, and a ball",
        ),
    ] = None,
    split_sample: Annotated[
        bool,
        typer.Option(
            "--split-sample",
            help="Bracket λ_max of all data by two halves of the examples.",
            rich_help_panel="How closely, and by what",
        ),
    ] = False,
    ball: Annotated[
        float | None,
        option(
            "Measure κ over the ball of this radius around the model, as Assumption 4 asks for it.",
            panel="Other matrices, and a ball",
        ),
    ] = None,
    ball_lr: Annotated[
        float | None,
        option(
            "Measure it over the assumption's own ball, of radius 2ηdG for this η (G is of --batch-size examples).",
            panel="Other matrices, and a ball",
        ),
    ] = None,
    ball_points: Annotated[
        int, option("Random points of the ball, beside its centre.", 4, panel="Other matrices, and a ball")
    ] = 4,
    forward_only: Annotated[
        int,
        option(
            "Take only values of the loss, along so many random directions; 0 takes products.",
            0,
            panel="Other matrices, and a ball",
        ),
    ] = 0,
    mu: Annotated[
        float | None,
        option(
            "The μ of --operator smoothed, or of --forward-only. [default: 0.001; by a ladder of μ for the latter]",
            panel="Other matrices, and a ball",
        ),
    ] = None,
    density_products: Annotated[
        int | None,
        option(
            "Products for the spectral density, which measures κ of the positive part and of absolute values too; 0 "
            "takes none. [default: 0, but 50 to draw it]",
            panel="How closely, and by what",
        ),
    ] = None,
    chunk: Annotated[
        int,
        option(
            "Examples that go through the model at once; 0 chooses by their size.", 0, panel="How closely, and by what"
        ),
    ] = 0,
    max_basis: Annotated[
        int,
        option(
            "Lanczos vectors kept at most, where memory is short; 0 keeps what the products need.",
            0,
            panel="How closely, and by what",
        ),
    ] = 0,
    device: Annotated[
        str,
        option("Where everything of the model's size is kept and computed: cpu, cuda, auto.", "cpu"),
    ] = "cpu",
    threads: Annotated[
        int, option("CPU threads of torch; more pay off for large models.", 1, panel="How closely, and by what")
    ] = 1,
    checkpoint: Annotated[Path | None, option("Save every product here; the same command resumes from it.")] = None,
    plot: Annotated[
        Path | None,
        option("Draw the spectrum, and how κ settled, to this file (.png, .pdf)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Estimate κ = tr H / ‖H‖₂ of a model, with an interval.

    κ says how many directions the curvature of the loss really has: DeComFL's rate depends on κ and not on d.

    SOURCE is a folder of `decomfl train --out`, a folder of transformers (with --task, or your own --data and --loss)
    or a safetensors file of weights (with --model and --data). Without it --model is trained here for --train-steps, or
    is your own as it is made. A run that was trained in Python on its user's own gets --model and --data again. Modules
    of your own are looked for in the current folder first.

      decomfl kappa --data digits --model mlp           trained here, seconds

      decomfl train --model cnn-mnist --rounds 200 --out runs/cnn

      decomfl kappa runs/cnn                            what that run left

      decomfl kappa --data text --model gpt-10m --examples 64 --batch-size 8

      decomfl kappa w.safetensors --model resnet20 --data cifar10

      decomfl kappa --model mine:net --data mine:loader --loss mine:loss

      decomfl kappa models/opt-125m --task sst2 --examples 32

      decomfl kappa models/bert --data mine:loader

      decomfl kappa runs/hiso --whiten runs/hiso        what HiSo's directions see

    The Hessian of a network has negative eigenvalues, which cancel in tr H: besides the signed κ the table has κ of
    the positive part and of absolute values, and --operator gauss-newton has no negative ones at all. κ is that of the
    loss on --examples; λ_max is larger on fewer examples, so take as many as time allows.
    """
    import torch

    from decomfl_lab.devices import find_device, use_tf32_, use_threads_
    from decomfl_lab.runs.descent import Descent
    from decomfl_lab.runs.progress import RunBars
    from hessian.kappa.estimation import Settings
    from hessian.kappa.picture import picture
    from hessian.named import scale_of
    from hessian.operators.mean_loss import NORMALISATIONS
    from hessian.resume import Checkpoint

    require_choice("operator", operator, OPERATORS)
    require_choice("dtype", dtype, DTYPES)
    require_choice("normalisation", normalisation, NORMALISATIONS)
    require_choice("trace", trace, TRACES)
    require(trace == "probes" or operator == "hessian", "trace", "be probes unless operator is hessian", trace)
    require_int("examples", examples, 0)
    require_int("chunk", chunk, 0)
    require_int("forward_only", forward_only, 0, 10**6)
    require(forward_only == 0 or forward_only >= 8, "forward_only", "be 0 or at least 8 directions", forward_only)
    require(max_basis == 0 or max_basis >= 4, "max_basis", "be 0 or at least 4", max_basis)
    require_int("products", products, 0)
    settings = Settings(rtol, confidence, max_products, products or None, seed, None, max_basis or None)
    density = (50 if plot else 0) if density_products is None else density_products
    require(density == 0 or density >= 3, "density_products", "be 0 or at least 3", density)
    require(ball is None or ball_lr is None, "ball and ball_lr", "not both be given", (ball, ball_lr))
    require_int("ball_points", ball_points, 1, 10_000)
    names = parameters.split(",") if parameters else None
    require(names is None or all(names), "parameters", "be names joined by commas", parameters)
    for name, value in (("mu", mu), ("ball", ball), ("ball_lr", ball_lr)):
        if value is not None:
            require_finite_positive(name, value)
    other = "forward_only" if forward_only else "ball" if ball or ball_lr else ""
    extras = {
        "plot": plot,
        "checkpoint": checkpoint,
        "density_products": density_products,
        "split_sample": split_sample,
    }
    for name, asked in extras.items():
        require(not other or not asked, name, f"stay unset with {other}, which has none", asked)
    place = find_device(device)
    if plot is not None:
        require_picture(plot)
    use_threads_(threads)
    descent = Descent(optimizer=optimizer, lr=lr, batch_size=batch_size, seed=seed)

    def interrupted() -> str:
        if checkpoint is None:
            return "interrupted; nothing is kept without --checkpoint FILE"
        kept = f"the products so far are in {checkpoint}" if checkpoint.exists() else f"{checkpoint} has no product yet"
        return f"interrupted; {kept}; the same command goes on"

    alone = held_checkpoint(checkpoint) if checkpoint is not None else nullcontext()
    with telling(interrupted), alone:
        # Whether the file is whole, and has these settings, is known before anything is trained.
        Checkpoint(checkpoint, lambda: {k: v for k, v in asdict(settings).items() if k != "trace"}).load()
        use_tf32_(False)
        s = None if whiten is None else scale_of(whiten)
        trained = _trained(source, model, data, loss, task, task_data, train_steps, descent, seed, place)
        trained.module.to(place)
        n = trained.dataset.N

        def losses(parts: int) -> tuple[hessian.MeanLoss, ...]:
            return trained.mean_loss(
                examples=min(examples or n, n),
                parts=parts,
                parameters=names,
                normalisation=normalisation,
                dtype=getattr(torch, dtype),
                chunk=None if normalisation == "batch" else chunk or None,
                weight_decay=weight_decay,
                trust=trust,
            )

        (objective,) = losses(1)
        facts = _facts(trained, objective)
        if s is not None:
            s = s.to(objective.device, objective.dtype)
            facts["whitened_by"] = str(whiten)

        def tell(name: str, found: hessian.ForwardOnly | hessian.BallProbe) -> None:
            whole = json.dumps({**facts, name: found.to_json()}, ensure_ascii=False)
            print(whole if as_json else f"{found.summary()}\n{_about(facts)}")

        if forward_only:
            f = None if s is None else hessian.WhitenedObjective(objective, objective.x, s)
            values = hessian.forward_only(
                f or objective, f.y if f else objective.x, seed=seed, probes=forward_only, mu=mu, confidence=confidence
            )
            tell("forward_only", values)
            return
        make = partial(_operator, operator, mu=1e-3 if mu is None else mu, s=s)
        if other == "ball":
            over = hessian.ball_probe(
                lambda x: make(objective, x),
                objective.x,
                ball or hessian.ball_radius(ball_lr or 0.0, objective.d, _largest_gradient(objective, batch_size)),
                points=ball_points,
                seed=seed,
                confidence=confidence,
                max_products=min(max_products, 60),
            )
            tell("ball", over)
            return
        curvature = make(objective)
        plain = curvature.inner if isinstance(curvature, hessian.WhitenedOperator) else curvature
        twin = None
        if trace != "probes" and isinstance(plain, hessian.HessianOperator):
            twin = hessian.trace_operator(plain)
        told, began, logger = False, time.monotonic(), logging.getLogger("decomfl_lab")
        with RunBars() as bars:

            def show(at: hessian.EffectiveRankProgress) -> None:
                nonlocal told
                hours = (time.monotonic() - began) / 3600 * min(products, objective.d) / at.products
                if at.products == FORETOLD and hours > LONG:
                    logger.warning(f"{products:,} products take about {hours:.1f} hours at the pace of the first")
                words = f"λ_max {at.lambda_max:.4g}, κ {at.kappa:.4g} in {_interval(at.low, at.high)}"
                if at.needed is not None and not products:
                    words += f"; ± {rtol:g} takes about {_foretold(at)} in all"
                    if at.products >= FORETOLD and at.needed > max_products and not told:
                        told = True
                        logger.warning(
                            f"± {rtol:g} of κ takes about {_foretold(at)} products: --max-products {max_products} is "
                            "not enough, and the interval will be wider"
                        )
                bars.show("products", at.products, products or max_products, words)

            result = hessian.effective_rank(
                curvature,
                rtol=rtol,
                confidence=confidence,
                max_products=max_products,
                products=products or None,
                seed=seed,
                checkpoint=checkpoint,
                on_progress=show,
                trace_operator=_whitened(twin, s) if twin is not None and trace == "gauss-newton" else None,
                trace=hessian.gauss_newton_trace(twin, whiten=s) if twin is not None and trace == "exact" else None,
                max_basis=max_basis or None,
            )
            found, split = None, None
            if density:
                bars.show("spectral density", 0, None, f"{density} products")
                found = hessian.spectral_density(curvature, products=density, seed=seed)
            if split_sample:
                bars.show("λ_max of two halves", 0, None, "")
                first, second = losses(2)
                split = hessian.split_sample((make(first), make(second)), seed=seed)
    if math.isnan(result.kappa):
        raise InputError(
            f"model must have curvature, got H = 0 along every direction tried, so κ is undefined, at a loss of "
            f"{objective.value:.4g} ({facts['history']})"
        )
    if as_json:
        estimate = {"estimate": result.to_json(), "density": found and _density_json(found, confidence)}
        print(json.dumps({**facts, **estimate, "split_sample": split and split.to_json()}, ensure_ascii=False))
    else:
        _print(result, found, split, facts)
    if plot is not None:
        try:
            print(f"written to {save_picture(picture(result, found, _about(facts)), plot)}", file=sys.stderr)
        except InputError as error:
            raise InputError(f"{error}; there is no picture, the numbers are printed") from error


def _foretold(at: hessian.EffectiveRankProgress) -> str:
    """The products that are needed in all, with the range that holds in nine of ten runs."""
    needed = at.needed or 0
    return f"{needed} ({max(at.products, needed // 2)} to {2 * needed})"


def _trained(
    source: Path | None,
    model: str | None,
    data: str | None,
    loss: str | None,
    task: str | None,
    task_data: str,
    steps: int | None,
    descent: Descent,
    seed: int,
    device: torch.device,
) -> TrainedModel:
    """The model that the arguments name, trained here, on the device, if that is asked for."""
    from decomfl_lab.datasets.images import DATA_SETS
    from decomfl_lab.language.causal import is_pretrained
    from decomfl_lab.language.tasks import TASKS
    from decomfl_lab.models.registry import MODELS
    from decomfl_lab.runs.progress import RunBars
    from decomfl_lab.runs.run import CHECKPOINT_FILE
    from hessian.named import from_run, from_task, from_weights, trained_here

    steps = None if steps is None else require_int("train_steps", steps, 0, 10**8)
    given = {"model": model, "data": data, "loss": loss, "task": task, "task_data": task_data or None}

    def require_unset(names: Sequence[str], where: str) -> None:
        named = [f"--{name.replace('_', '-')}" for name in names if given[name] is not None]
        require(not named, " and ".join(names), f"stay unset for {where}", named)

    if source is not None and is_pretrained(str(source)):
        require_unset(["model"], "a folder of transformers, which is the model")
        source, model = None, str(source)
    if source is not None and not (source / CHECKPOINT_FILE if source.is_dir() else source).exists():
        kinds = "a folder of decomfl train, a folder of transformers (with config.json) or a file of weights"
        raise InputError(f"source must be {kinds}, got {source}")
    if source is not None and (source.is_dir() or source.name == CHECKPOINT_FILE):
        require_unset(["task", "task_data"], "a run, which has its own")
        return from_run(source if source.is_dir() else source.parent, model=model, data=data, loss=loss)
    if task is not None:
        require_choice("task", task, TASKS)
        require_unset(["data", "loss"], "a task, which has its own")
        require(source is None and not steps, "source and train_steps", "stay unset for a task", (source, steps))
        if model is None:
            raise InputError("model must be given with a task: a folder, a GGUF file or a name of the hub")
        return from_task(task, model=model, files=task_data)
    require_unset(["task_data"], "data that are no task's")
    if source is not None and (model is None or data is None):
        raise InputError(f"model and data must be given with a file of weights, got source {source}")
    if model is None or data is None:
        raise InputError("model and data, or model and task, must be given unless source is a run of decomfl train")
    for name, value, known in (("model", model, MODELS), ("data", data, DATA_SETS)):
        if not (is_own(value) or (name == "model" and is_pretrained(value))):
            require_choice(name, value, [*known, "module:function"])
    if source is not None:
        return from_weights(source, model=model, data=data, loss=loss)
    if steps is None:
        steps = 300 if model in MODELS else 0
    with RunBars() as bars:

        def show(step: int, value: float) -> None:
            bars.show("training", step, steps, f"loss {value:.3f}")

        return trained_here(
            model, data, steps=steps, descent=descent, seed=seed, loss=loss, device=device, on_step=show
        )


def _operator(
    name: str, objective: hessian.MeanLoss, x: Tensor | None = None, *, mu: float, s: Tensor | None
) -> hessian.Operator:
    x = objective.x if x is None else x
    if name == "smoothed" and s is not None:  # smoothed along scaled directions too
        f = hessian.WhitenedObjective(objective, x, s)
        smoothed = hessian.SmoothedOperator(f, f.y, mu)
        smoothed.name = "whitened smoothed"
        return smoothed
    if name == "smoothed":
        return hessian.SmoothedOperator(objective, x, mu)
    kinds: dict[str, Callable[..., hessian.Operator]] = {
        "hessian": hessian.HessianOperator,
        "gauss-newton": hessian.GaussNewtonOperator,
        "fisher": hessian.FisherOperator,
    }
    return _whitened(kinds[name](objective, x), s)


def _whitened(operator: hessian.Operator, s: Tensor | None) -> hessian.Operator:
    return operator if s is None else hessian.WhitenedOperator(operator, s)


def _largest_gradient(objective: hessian.MeanLoss, batch_size: int) -> float:
    """G, over the batches that the examples make."""
    import torch

    from hessian.operators.mean_loss import differentiating

    x = objective.x.clone().requires_grad_()
    batches = [batch for piece in objective.pieces for batch in piece.cut(batch_size)]
    with differentiating("the gradient"):
        return float(torch.stack([objective.piece_gradient(x, batch).norm() for batch in batches]).max())


def _facts(trained: TrainedModel, objective: hessian.MeanLoss) -> dict[str, Any]:
    """What the numbers belong to."""
    from decomfl_lab.devices import describe
    from decomfl_lab.models.registry import num_parameters
    from decomfl_lab.runs.provenance import provenance

    where = provenance(trained.dataset)
    return {
        "model": trained.name,
        "history": trained.history,
        "d": objective.d,
        "parameters": "all" if objective.d == num_parameters(trained.module) else "a subset",
        "data": where["data"],
        "data_digest": where["data_digest"],
        "examples": sum(piece.examples for piece in objective.pieces),
        "loss": objective.value,
        "loss_function": "the model's own loss"
        if trained.loss is None
        else getattr(trained.loss, "__name__", type(trained.loss).__name__).replace("_", "-"),
        "weight_decay": objective.weight_decay,
        "remark": objective.remark,
        "batchnorm": objective.mode,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "code": where["code"],
        "versions": f"Python {where['python']}, torch {where['torch']}",
        "device": describe(objective.device),
    }


def _about(facts: dict[str, Any]) -> str:
    norm = "" if facts["batchnorm"] == "none" else f", BatchNorm {facts['batchnorm']}"
    decay = f" with weight decay {facts['weight_decay']:g}" if facts["weight_decay"] else ""
    part = "" if facts["parameters"] == "all" else " (a subset of the parameters)"
    return (
        f"{facts['model']}, {facts['history']}; {facts['loss_function']} {facts['loss']:.4g}{decay} on "
        f"{facts['examples']:,} training examples; d = {facts['d']:,}{part}; {facts['dtype']}{norm}, "
        f"on {facts['device']}. Data: {facts['data']}."
    )


def _interval(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


Row = tuple[str, str, str, str]


def _print(
    result: hessian.EffectiveRank,
    density: hessian.SpectralDensity | None,
    split: hessian.SplitSample | None,
    facts: dict[str, Any],
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"κ of the {result.operator}", title_justify="left")
    for head in ("quantity", "value", f"{result.confidence:.0%} interval", "what it is"):
        table.add_column(head, justify="left" if head in ("quantity", "what it is") else "right")
    for row in _rows(result, density, split):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 130, highlight=False).print(table)
    made = f"{plural(result.steps, 'Lanczos step')}, {plural(result.probes, 'probe')}"
    spent = f"{plural(result.products, 'product')} ({made}), {result.seconds:.1f} s"
    print(f"{result.reason}\n{spent}; seed {result.seed}\n{_about(facts)}")


def _rows(
    result: hessian.EffectiveRank, density: hessian.SpectralDensity | None, split: hessian.SplitSample | None
) -> Iterator[Row]:
    yield "κ signed", f"{result.kappa:.4g}", _interval(*result.interval), "tr / ‖·‖₂: negative eigenvalues cancel"
    sampled = density.kappas(result.confidence) if density is not None else {}
    for name, what, estimate in (
        ("positive", "Σ max(λ, 0) / λ_max", result.kappa_positive),
        ("absolute", "Σ |λ| / max |λ|", result.kappa_absolute),
    ):
        if estimate is not None:
            sampled[name] = (estimate.value, *estimate.interval(result.confidence))
        if name in sampled:
            value, low, high = sampled[name]
            yield f"κ {name}", f"{value:.4g}", _interval(low, high), what
        else:
            yield f"κ {name}", "–", "–", f"{what}: not measured (--density-products 50)"
    trace = result.trace
    yield "trace", f"{trace.value:.5g}", _interval(*result.trace_interval), f"standard error {trace.stderr:.2g}"
    for name, value, residual in (
        ("λ_max", result.lambda_max, result.lambda_max_residual),
        ("λ_min", result.lambda_min, result.lambda_min_residual),
    ):
        yield name, f"{value:.5g}", f"± {result.believed(residual):.2g}", "Ritz value; its residual, at least ε‖H‖₂"
    if split is not None:
        yield "λ_max of all data", "", _interval(split.below, split.above), "in expectation, from two halves"
        yield "κ of all data", "", _interval(*split.kappa(trace.value)), "trace / λ_max of all data"


def _density_json(density: hessian.SpectralDensity, confidence: float) -> dict[str, Any]:
    readings = density.kappas(confidence).items()
    return {
        "nodes": density.nodes.tolist(),
        "weights": density.weights.tolist(),
        "exact": density.exact.tolist(),
        "samples": density.samples.tolist(),
        "bandwidth": density.bandwidth,
        "products": density.products,
        "kappas": {name: [each if math.isfinite(each) else None for each in ends] for name, ends in readings},
    }
