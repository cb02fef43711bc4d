"""``decomfl kappa``: the effective rank of a trained model's curvature, with its interval."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from decomfl_lab.datasets.images import DATA_SETS
from decomfl_lab.devices import DEVICES, describe, find_device, use_tf32_
from decomfl_lab.errors import InputError, require, require_choice, require_finite_positive, require_int
from decomfl_lab.files import held_checkpoint
from decomfl_lab.interrupts import telling
from decomfl_lab.language.tasks import TASKS
from decomfl_lab.models.registry import MODELS, num_parameters
from decomfl_lab.plugins import is_own
from decomfl_lab.runs.descent import OPTIMIZERS, Descent
from decomfl_lab.runs.progress import RunBars
from decomfl_lab.runs.provenance import provenance
from decomfl_lab.runs.run import CHECKPOINT_FILE
from hessian.ball import ball_probe, ball_radius
from hessian.curvature import FisherOperator, GaussNewtonOperator, HessianOperator
from hessian.density import SpectralDensity, spectral_density
from hessian.exact import gauss_newton_trace
from hessian.forward import ForwardOnly
from hessian.forward import forward_only as by_values
from hessian.halves import SplitSample
from hessian.halves import split_sample as by_halves
from hessian.kappa import EffectiveRank, EffectiveRankProgress, effective_rank
from hessian.mean_loss import NORMALISATIONS, MeanLoss, good_chunk
from hessian.named import TrainedModel, from_run, from_task, from_weights, trained_here
from hessian.operator import Operator
from hessian.picture import picture, require_picture, save
from hessian.piecewise import trace_operator
from hessian.smoothed import SmoothedOperator

__all__ = ["kappa"]

TRACES = ("probes", "gauss-newton", "exact")
OPERATORS = ("hessian", "gauss-newton", "fisher", "smoothed")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _option(text: str, default: object = None) -> Any:
    """An option with its default in its help; typer would write a backslash before it."""
    return typer.Option(help=text if default is None else f"{text} [default: {default}]", show_default=False)


def kappa(
    source: Annotated[Path | None, typer.Argument(show_default=False)] = None,
    *,
    model: Annotated[
        str | None,
        _option(
            f"The model: {', '.join(MODELS)}; your own as module:function, which returns a torch module; with "
            "--task a causal language model: a folder of transformers, a GGUF file or a name of the hub."
        ),
    ] = None,
    data: Annotated[
        str | None,
        _option(
            f"The data: {', '.join(DATA_SETS)}; your own as module:function, which returns batches (inputs, "
            "targets), a DataLoader, a Dataset or a pair of tensors."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        _option(
            "Your own loss as module:function, called with outputs and targets, the mean over the batch: e.g. "
            "torch.nn.functional:mse_loss. [default: cross-entropy]"
        ),
    ] = None,
    task: Annotated[
        str | None, _option(f"The task whose prompts a language model answers: {', '.join(TASKS)}.")
    ] = None,
    task_data: Annotated[str, _option("The folder of the task's files. [default: $DECOMFL_DATA/<task>]")] = "",
    train_steps: Annotated[
        int | None,
        _option(
            "First-order steps before κ is measured; 0 is the start, not a trained model. [default: 300; 0 for "
            "your own model]"
        ),
    ] = None,
    optimizer: Annotated[str, _option(f"The optimizer of those steps: {', '.join(OPTIMIZERS)}.", "adam")] = "adam",
    lr: Annotated[float, _option("The learning rate of those steps.", 1e-3)] = 1e-3,
    batch_size: Annotated[int, _option("Examples a step.", 64)] = 64,
    operator: Annotated[
        str,
        _option(
            "The matrix: hessian; gauss-newton (positive semi-definite); fisher (empirical); smoothed (what a "
            "zeroth-order method with --mu sees).",
            "hessian",
        ),
    ] = "hessian",
    examples: Annotated[
        int, _option("Training examples of the loss, a fixed random choice; 0 takes all.", 1000)
    ] = 1000,
    parameters: Annotated[
        str,
        _option("Only these parameters count, as names or prefixes joined by commas. [default: all]"),
    ] = "",
    normalisation: Annotated[
        str,
        _option(
            "What BatchNorm takes: eval (statistics of a calibration set, or its own) or batch (those of the "
            "examples).",
            "eval",
        ),
    ] = "eval",
    rtol: Annotated[float, _option("Stop when the interval of κ is within ± this share of it.", 0.05)] = 0.05,
    confidence: Annotated[float, _option("The confidence of every interval.", 0.95)] = 0.95,
    max_products: Annotated[int, _option("Stop after so many products H·v in any case.", 200)] = 200,
    products: Annotated[
        int, _option("Take exactly so many products, whatever the error; 0 does as --rtol says.", 0)
    ] = 0,
    seed: Annotated[int, _option("The seed of the random vectors, and of a model trained here.", 0)] = 0,
    dtype: Annotated[str, _option(f"The dtype of the computation: {', '.join(DTYPES)}.", "float32")] = "float32",
    probe_steps: Annotated[
        int, _option("Products a probe; 5 measure κ of the positive part and of absolute values too.", 1)
    ] = 1,
    trace: Annotated[
        str,
        _option(
            "How tr H is found: probes; gauss-newton (probes of that matrix, where it has the same trace: "
            "networks piecewise affine in each weight); exact (its finite sum over examples and outputs, no sampling).",
            "probes",
        ),
    ] = "probes",
    split_sample: Annotated[
        bool, typer.Option("--split-sample", help="Bracket λ_max of all data by two halves of the examples.")
    ] = False,
    ball: Annotated[
        float | None,
        _option("Measure κ over the ball of this radius around the model, as Assumption 4 asks for it."),
    ] = None,
    ball_lr: Annotated[
        float | None,
        _option(
            "Measure it over the assumption's own ball, of radius 2ηdG for this η (G is that of --batch-size examples)."
        ),
    ] = None,
    ball_points: Annotated[int, _option("Random points of the ball, beside its centre.", 4)] = 4,
    forward_only: Annotated[
        int, _option("Take only values of the loss, along so many random directions; 0 takes products.", 0)
    ] = 0,
    mu: Annotated[
        float | None,
        _option(
            "The μ of --operator smoothed, or of --forward-only. [default: 0.001; by a ladder of μ for the latter]"
        ),
    ] = None,
    density_probes: Annotated[
        int | None, _option("Probes of the spectral density; 0 takes none. [default: 0, but 3 to draw it]")
    ] = None,
    density_steps: Annotated[int, _option("Lanczos steps of each of these probes.", 10)] = 10,
    chunk: Annotated[int, _option("Examples that go through the model at once; 0 chooses by their size.", 0)] = 0,
    max_basis: Annotated[
        int,
        _option("Lanczos vectors kept at most, where memory is short; 0 keeps what the products need.", 0),
    ] = 0,
    device: Annotated[
        str,
        _option(f"Where everything of the model's size is kept and computed: {', '.join(DEVICES)}.", "cpu"),
    ] = "cpu",
    threads: Annotated[int, _option("CPU threads of torch; more pay off for large models.", 1)] = 1,
    checkpoint: Annotated[Path | None, _option("Save every product here; the same command resumes from it.")] = None,
    plot: Annotated[
        Path | None,
        _option("Draw the spectrum, and how κ settled, to this file (.png, .pdf), with 3 density probes."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Estimate κ = tr H / ‖H‖₂ of a trained model, with an interval that holds.

    κ says how many directions the curvature of the loss really has: DeComFL's rate depends on κ and not on d.

    SOURCE is a folder of `decomfl train --out`, or a safetensors file of weights (with --model and --data). Without it
    --model is trained here for --train-steps, or is your own, or a language model as it is in its folder.

      decomfl kappa --data digits --model mlp           trained here, seconds

      decomfl train --model cnn-mnist --rounds 200 --out runs/cnn

      decomfl kappa runs/cnn                            what that run left

      decomfl kappa --data text --model gpt-10m --examples 64 --batch-size 8

      decomfl kappa w.safetensors --model resnet20 --data cifar10

      decomfl kappa --model mine:net --data mine:loader --loss mine:loss

      decomfl kappa --task sst2 --model models/opt-125m --examples 32 --threads 2

    The Hessian of a network has negative eigenvalues, which cancel in tr H: besides the signed κ the table has κ of
    the positive part and of absolute values, and --operator gauss-newton has no negative ones at all. κ is that of the
    loss on --examples; λ_max is larger on fewer examples, so take as many as time allows.
    """
    require_choice("operator", operator, OPERATORS)
    require_choice("dtype", dtype, DTYPES)
    require_choice("normalisation", normalisation, NORMALISATIONS)
    require_int("examples", examples, 0)
    require_int("forward_only", forward_only, 0)
    require_choice("trace", trace, TRACES)
    fits = trace == "probes" or operator == "hessian"
    require(fits, "trace", "be probes unless operator is hessian", trace)
    probes = (3 if plot else 0) if density_probes is None else require_int("density_probes", density_probes, 0)
    require_int("density_steps", density_steps, 1)
    require_int("chunk", chunk, 0)
    require(max_basis == 0 or max_basis >= 4, "max_basis", "be 0 or at least 4", max_basis)
    place = find_device(device)
    use_tf32_(False)
    if plot is not None:
        require_picture(plot)
    torch.set_num_threads(require_int("threads", threads, 1))
    descent = Descent(optimizer=optimizer, lr=lr, batch_size=batch_size, seed=seed)
    trained = _trained(source, model, data, loss, task, task_data, train_steps, descent, seed, place)
    trained.module.to(place)
    n = len(trained.dataset.train_labels)

    def losses(parts: int) -> tuple[MeanLoss, ...]:
        return trained.mean_loss(
            examples=min(examples or n, n),
            parts=parts,
            parameters=[name for name in parameters.split(",") if name] or None,
            normalisation=normalisation,
            dtype=DTYPES[dtype],
            chunk=None if normalisation == "batch" else chunk or good_chunk(trained.examples[0], place),
        )

    (objective,) = losses(1)
    facts = _facts(trained, objective)
    if forward_only:
        found = by_values(objective, objective.x, seed=seed, probes=forward_only, mu=mu, confidence=confidence)
        if as_json:
            print(json.dumps({**facts, "forward_only": found.to_json()}, ensure_ascii=False))
        else:
            _print_values(found, facts)
        return
    make = partial(_operator, operator, mu=1e-3 if mu is None else mu)
    if ball is not None or ball_lr is not None:
        require(ball is None or ball_lr is None, "ball and ball_lr", "not both be given", (ball, ball_lr))
        if ball_lr is not None:
            ball = ball_radius(ball_lr, objective.d, _largest_gradient(objective, batch_size))
        over = ball_probe(
            lambda x: make(objective, x),
            objective.x,
            require_finite_positive("ball", ball),
            points=ball_points,
            seed=seed,
            confidence=confidence,
            max_products=min(max_products, 60),
        )
        if as_json:
            print(json.dumps({**facts, "ball": over.to_json()}, ensure_ascii=False))
        else:
            print(f"{over.summary()}\n{_about(facts)}")
        return
    curvature = make(objective)
    twin = trace_operator(curvature) if isinstance(curvature, HessianOperator) and trace != "probes" else None

    def interrupted() -> str:
        if checkpoint is None:
            return "interrupted; nothing is kept without --checkpoint FILE"
        kept = f"the products so far are in {checkpoint}" if checkpoint.exists() else f"{checkpoint} has no product yet"
        return f"interrupted; {kept}; the same command goes on"

    alone = held_checkpoint(checkpoint) if checkpoint is not None else nullcontext()
    with telling(interrupted), alone, RunBars() as bars:

        def show(at: EffectiveRankProgress) -> None:
            words = f"λ_max {at.lambda_max:.4g}, κ {at.kappa:.4g} in {_interval(at.low, at.high)}"
            bars.show("products", at.products, products or max_products, words)

        result = effective_rank(
            curvature,
            rtol=rtol,
            confidence=confidence,
            max_products=max_products,
            products=products or None,
            seed=seed,
            checkpoint=checkpoint,
            on_progress=show,
            probe_steps=probe_steps,
            trace_operator=twin if trace == "gauss-newton" else None,
            trace=gauss_newton_trace(twin) if twin is not None and trace == "exact" else None,
            max_basis=max_basis or None,
        )
        density, split = None, None
        if probes:
            bars.show("spectral density", 0, None, f"{probes} probes")
            density = spectral_density(
                curvature, steps=result.steps, probes=probes, probe_steps=density_steps, seed=seed
            )
        if split_sample:
            bars.show("λ_max of two halves", 0, None, "")
            first, second = losses(2)
            split = by_halves((make(first), make(second)), seed=seed)
    if plot is not None:
        save(picture(result, density, _about(facts)), plot)
    if as_json:
        estimate = {"estimate": result.to_json(), "density": density and _density_json(density, confidence)}
        print(json.dumps({**facts, **estimate, "split_sample": split and split.to_json()}, ensure_ascii=False))
    else:
        _print(result, density, split, facts)


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
    given = {"model": model, "data": data, "loss": loss, "task": task, "task_data": task_data or None}

    def require_unset(names: Sequence[str], where: str) -> None:
        named = [f"--{name.replace('_', '-')}" for name in names if given[name] is not None]
        require(not named, " and ".join(names), f"stay unset for {where}", named)

    if source is not None and not source.exists():
        raise InputError(f"source must be a folder of decomfl train or a file of weights, got {source}")
    if source is not None and (source.is_dir() or source.name == CHECKPOINT_FILE):
        require_unset(list(given), "a run, which has its own")
        return from_run(source if source.is_dir() else source.parent)
    if task is not None:
        require_unset(["data", "loss"], "a task, which has its own")
        require(source is None and not steps, "source and train_steps", "stay unset for a task", (source, steps))
        if model is None:
            raise InputError("model must be given with a task: a folder, a GGUF file or a name of the hub")
        return from_task(task, model=model, files=task_data)
    require_unset(["task_data"], "data that are no task's")
    if model is None or data is None:
        raise InputError("model and data must be given unless source is a run of decomfl train")
    for name, value, known in (("model", model, MODELS), ("data", data, DATA_SETS)):
        if not is_own(value):
            require_choice(name, value, [*known, "module:function"])
    if source is not None:
        return from_weights(source, model=model, data=data, loss=loss)
    if steps is None:
        steps = 0 if is_own(model) else 300
    require_int("train_steps", steps, 0)
    with RunBars() as bars:

        def show(step: int, value: float) -> None:
            bars.show("training", step, steps, f"loss {value:.3f}")

        return trained_here(
            model, data, steps=steps, descent=descent, seed=seed, loss=loss, device=device, on_step=show
        )


def _operator(name: str, objective: MeanLoss, x: Tensor | None = None, *, mu: float) -> Operator:
    kinds: dict[str, Callable[[], Operator]] = {
        "hessian": lambda: HessianOperator(objective, x),
        "gauss-newton": lambda: GaussNewtonOperator(objective, x),
        "fisher": lambda: FisherOperator(objective, x),
        "smoothed": lambda: SmoothedOperator(objective, objective.x if x is None else x, mu),
    }
    return kinds[name]()


def _largest_gradient(objective: MeanLoss, batch_size: int) -> float:
    """G, over the batches that the examples make."""
    x = objective.x.clone().requires_grad_()
    batches = [batch for piece in objective.pieces for batch in piece.cut(batch_size)]
    return float(torch.stack([objective.piece_gradient(x, batch).norm() for batch in batches]).max())


def _facts(trained: TrainedModel, objective: MeanLoss) -> dict[str, Any]:
    """What the numbers belong to."""
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
        "loss_function": getattr(trained.loss, "__name__", type(trained.loss).__name__).replace("_", "-"),
        "batchnorm": objective.mode,
        "dtype": str(objective.dtype).removeprefix("torch."),
        "code": where["code"],
        "versions": f"Python {where['python']}, torch {where['torch']}",
        "device": describe(objective.device),
    }


def _about(facts: dict[str, Any]) -> str:
    norm = "" if facts["batchnorm"] == "none" else f", BatchNorm {facts['batchnorm']}"
    part = "" if facts["parameters"] == "all" else " (a subset of the parameters)"
    return (
        f"{facts['model']}, {facts['history']}; {facts['loss_function']} {facts['loss']:.4g} on {facts['examples']:,} "
        f"training examples; d = {facts['d']:,}{part}; {facts['dtype']}{norm}, on {facts['device']}. "
        f"Data: {facts['data']}."
    )


def _interval(low: float, high: float) -> str:
    return f"{low:.4g} .. {high:.4g}"


Row = tuple[str, str, str, str]


def _table(title: str, confidence: float, rows: Iterable[Row], remarks: Iterable[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    table = Table(title=title, title_justify="left")
    for head in ("quantity", "value", f"{confidence:.0%} interval", "what it is"):
        table.add_column(head, justify="left" if head in ("quantity", "what it is") else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for remark in remarks:
        print(remark)


def _print(
    result: EffectiveRank, density: SpectralDensity | None, split: SplitSample | None, facts: dict[str, Any]
) -> None:
    spent = f"{result.products} products ({result.steps} Lanczos steps, {result.probes} probes), {result.seconds:.1f} s"
    remarks = [result.reason, f"{spent}; seed {result.seed}", _about(facts)]
    _table(f"κ of the {result.operator}", result.confidence, _rows(result, density, split), remarks)


def _rows(result: EffectiveRank, density: SpectralDensity | None, split: SplitSample | None) -> Iterator[Row]:
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
            yield f"κ {name}", "–", "–", f"{what}: not measured (--probe-steps 5)"
    trace = result.trace
    yield "trace", f"{trace.value:.5g}", _interval(*result.trace_interval), f"standard error {trace.stderr:.2g}"
    for name, value, residual in (
        ("λ_max", result.lambda_max, result.lambda_max_residual),
        ("λ_min", result.lambda_min, result.lambda_min_residual),
    ):
        yield name, f"{value:.5g}", f"± {residual:.2g}", "Ritz value and its residual"
    if split is not None:
        yield "λ_max of all data", "", _interval(split.below, split.above), "in expectation, from two halves"
        yield "κ of all data", "", _interval(*split.kappa(trace.value)), "trace / λ_max of all data"


def _print_values(found: ForwardOnly, facts: dict[str, Any]) -> None:
    rows: list[Row] = [
        (
            "trace",
            f"{found.trace.value:.5g}",
            _interval(*found.trace_interval),
            f"rounding {found.rounding:.2g}, truncation {found.truncation:.2g}",
        )
    ]
    for name, quantity in (("‖H‖_F²", found.frobenius_squared), ("tr H³", found.cube)):
        if quantity is not None:
            rows.append((name, f"{quantity.value:.5g}", _interval(quantity.low, quantity.high), "from moments"))
    for name, bracket in found.brackets.items():
        ends = _interval(bracket.outer_low, bracket.outer_high)
        rows.append((f"κ, {name}", _interval(bracket.low, bracket.high), ends, "a bracket; with its sampling error"))
    spent = f"{found.evaluations} values of the loss, μ = {found.mu:.3g}, {found.distribution} directions"
    _table(
        "κ from values of the loss alone",
        found.confidence,
        rows,
        [found.reason, f"{spent}, seed {found.seed}", _about(facts)],
    )


def _density_json(density: SpectralDensity, confidence: float) -> dict[str, Any]:
    readings = density.kappas(confidence).items()
    return {
        "nodes": density.nodes.tolist(),
        "weights": density.weights.tolist(),
        "exact": density.exact.tolist(),
        "probe": density.probe.tolist(),
        "bandwidth": density.bandwidth,
        "products": density.products,
        "kappas": {name: [each if math.isfinite(each) else None for each in ends] for name, ends in readings},
    }
