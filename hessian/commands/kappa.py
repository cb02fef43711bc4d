"""``decomfl kappa``: the effective rank of a trained model's curvature, with its interval.

What loads torch is imported where it is used, so that the help comes at once.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hessian
from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.interrupts import telling
from decomfl_lab.language.tasks import TASKS
from decomfl_lab.options import MOST_THREADS, TRUST_CODE, option
from decomfl_lab.plugins import is_own
from decomfl_lab.storage.files import held_file, require_picture, save_picture
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside
from hessian.kappa.settings import Settings, span
from hessian.operators.options import HOW, MODEL, OTHERS, CurvatureOptions
from hessian.parts import PARTS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from decomfl_lab.progress import RunBars
    from hessian.kappa.beside import ByPyHessian
    from hessian.trained_models import TrainedModel

_HELP = table_beside(__name__, "kappa.toml")
TRACES = ("probes", "gauss-newton", "exact")

FORETOLD = 10  # products from which on the number that is needed, and the time, are foretold well enough to say so
FORECAST = 1 << 20  # parameters from which on memory and time are forecast
LONG = 720.0  # seconds from which on the time is told


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is measured: the model, its data and its loss."""

    source: Path | None = option(None, "", argument=True)
    model: str | None = option(None, _HELP["model"])
    data: str | None = option(None, _HELP["data"])
    loss: str | None = option(None, _HELP["loss"])
    task: str | None = option(None, _HELP["task"].format(tasks=", ".join(TASKS)))
    task_data: str = option("", _HELP["task_data"], MODEL)
    train_steps: int | None = option(None, _HELP["train_steps"], MODEL, ge=0, le=10**8)
    optimizer: str = option("adam", _HELP["optimizer"], MODEL)
    lr: float = option(1e-3, _HELP["lr"], MODEL, symbol="η", gt=0)
    batch_size: int = option(64, _HELP["batch_size"], MODEL, symbol="B", ge=1)
    examples: int = option(1000, _HELP["examples"], ge=0)
    trust_code: bool = option(False, TRUST_CODE)

    @property
    def trusted(self) -> bool | list[str]:
        """What a run's files may name: any code, or what the flags name too."""
        return self.trust_code or [name for name in (self.model, self.data, self.loss) if name is not None]


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """How the trace of the matrix is found, and by what it is scaled."""

    trace: str = option("probes", _HELP["trace"], HOW, choices=TRACES)
    whiten: Path | None = option(None, _HELP["whiten"], OTHERS)


@dataclass(frozen=True, kw_only=True)
class OtherOptions:
    """What is measured in place of κ by products."""

    ball: float | None = option(None, _HELP["ball"], OTHERS, gt=0)
    ball_lr: float | None = option(None, _HELP["ball_lr"], OTHERS, gt=0)
    ball_points: int = option(4, _HELP["ball_points"], OTHERS, ge=1, le=10_000)
    forward_only: int = option(0, _HELP["forward_only"], OTHERS, ge=0, le=10**6)

    by_layer: bool = option(False, _HELP["by_layer"])
    depth: int | None = option(None, _HELP["depth"], OTHERS, ge=1)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of what is measured, of which there is one at most; none for κ by products."""
        asked = {
            "forward_only": self.forward_only > 0,
            "ball": self.ball is not None or self.ball_lr is not None,
            "by_layer": self.by_layer,
        }
        return tuple(name for name, wanted in asked.items() if wanted)


@dataclass(frozen=True, kw_only=True)
class KappaOptions:
    """The options of ``decomfl kappa``."""

    source: SourceOptions
    curvature: CurvatureOptions
    matrix: MatrixOptions
    settings: Settings
    other: OtherOptions
    split_sample: bool = option(False, _HELP["split_sample"], HOW)
    density_products: int | None = option(None, _HELP["density_products"], HOW)
    overlap: bool = option(False, _HELP["overlap"], HOW)
    beside: str | None = option(None, _HELP["beside"], OTHERS, choices=("pyhessian",))
    within: str | None = option(None, _HELP["within"])
    device: str = option("cpu", _HELP["device"])
    threads: int = option(1, _HELP["threads"], HOW, ge=1, le=MOST_THREADS)
    checkpoint: Path | None = option(None, _HELP["checkpoint"])
    plot: Path | None = option(None, _HELP["plot"])
    as_json: bool = option(False, _HELP["as_json"], flag="--json")

    @property
    def asked(self) -> dict[str, Any]:
        """The settings by name, but the trace, which is measured."""
        return {name: value for name, value in asdict(self.settings).items() if name != "trace"}

    @property
    def products_of_density(self) -> int:
        """Products for the spectral density."""
        return (50 if self.plot else 0) if self.density_products is None else self.density_products

    def require(self) -> None:
        """InputError if an option breaks a rule, before anything is trained."""
        curvature, matrix, asked, part = self.curvature, self.matrix, self.other, self.settings.part
        # How the trace is found, and what is measured in place of κ by products.
        has_twin = matrix.trace == "probes" or (curvature.operator == "hessian" and curvature.compute == "float32")
        require(has_twin, "trace", "be probes unless operator is hessian and compute is float32", matrix.trace)
        enough = asked.forward_only == 0 or asked.forward_only >= 8
        require(enough, "forward_only", "be 0 or at least 8 directions", asked.forward_only)
        both = asked.ball is not None and asked.ball_lr is not None
        require(not both, "ball and ball_lr", "not both be given", (asked.ball, asked.ball_lr))
        require(len(asked.chosen) <= 1, "forward_only, ball and by_layer", "not be given together", "more than one")
        require(asked.depth is None or asked.by_layer, "depth", "be given with by_layer alone", asked.depth)
        density = self.products_of_density
        require(density == 0 or density >= 3, "density_products", "be 0 or at least 3", density)
        # What goes together.
        other = "".join(asked.chosen)
        require(matrix.trace == "probes" or not other, "trace", f"be probes with {other}", matrix.trace)
        plain = (other, curvature.operator, curvature.compute, part, matrix.whiten)
        whole = plain == ("", "hessian", "float32", "signed", None)
        require(self.beside is None or whole, "beside", "stay unset but for κ of the whole Hessian", self.beside)
        walked = part == "signed" or (other in ("", "by_layer") and matrix.trace == "probes")
        require(walked, "part", f"be signed with {other or f'trace {matrix.trace}'}", part)
        without_room = other in ("ball", "forward_only") or density or self.split_sample
        fine = curvature.compute == "float32" or not without_room
        rule = "be float32 with a ball, a density or halves, and for forward passes"
        require(fine, "compute", rule, curvature.compute)
        if self.within is not None:
            span(self.within)
        drawn = ("plot",) if other != "by_layer" else ()
        for name in (*drawn, "checkpoint", "density_products", "split_sample", "within", "overlap"):
            given = getattr(self, name)
            require(not other or not given, name, f"stay unset with {other}, which has none", given)
        if self.plot is not None:
            require_picture(self.plot)


@command
def kappa(options: KappaOptions) -> None:
    """Estimate κ = tr H / ‖H‖₂ of a model, with an interval.

    κ says how many directions the curvature of the loss really has: DeComFL's rate depends on κ and not on d.

    SOURCE is a folder of `decomfl train --out`, a folder of transformers (with --task, or your own --data and --loss)
    or a safetensors file of weights (with --model, and --data or --task). Without it --model is trained here for
    --train-steps, or is your own as it is made. A run that was trained in Python on your own objects needs --model
    and --data again. Modules of your own are looked for in the current folder first.

      decomfl kappa --data digits --model mlp           trained here, seconds
      decomfl train --model cnn-mnist --rounds 200 --out runs/cnn
      decomfl kappa runs/cnn                            what that run left
      decomfl kappa --data text --model gpt-10m --examples 64 --batch-size 8
      decomfl kappa w.safetensors --model resnet20 --data cifar10
      decomfl kappa --model mine:net --data mine:loader --loss mine:loss
      decomfl kappa models/opt-125m --task sst2 --examples 32
      decomfl kappa w.safetensors --model models/opt-125m --task sst2
      decomfl kappa models/bert --data mine:loader
      decomfl kappa runs/hiso --whiten runs/hiso        what HiSo's directions see
      decomfl kappa runs/cnn --by-layer                 a table of the layers

    The Hessian of a network has negative eigenvalues, which cancel in tr H: with --part positive the table has κ of the
    positive part and of absolute values too; --operator gauss-newton has no negative ones. κ is that of the
    loss on --examples; λ_max is larger on fewer examples, so take as many as time allows.
    """
    from decomfl_lab.devices import use_tf32_, use_threads_
    from decomfl_lab.progress import RunBars
    from decomfl_lab.storage.outside import SavedEstimate
    from hessian.kappa.beside import by_pyhessian
    from hessian.kappa.picture import picture
    from hessian.resumption import Checkpoint

    options.require()
    use_threads_(options.threads)
    checkpoint, settings = options.checkpoint, options.settings

    def interrupted() -> str:
        if checkpoint is None:
            return "interrupted; nothing is kept without --checkpoint FILE"
        kept = f"the products so far are in {checkpoint}" if checkpoint.exists() else f"{checkpoint} has no product yet"
        return f"interrupted; {kept}; the same command goes on"

    alone = held_file("checkpoint", checkpoint) if checkpoint is not None else nullcontext()
    with telling(interrupted), alone:
        # Whether the file is whole, and can be gone on from, is known before anything is trained.
        same = {name: value for name, value in settings.identity.items() if name != "trace"}  # that is measured
        Checkpoint(checkpoint, lambda: same, SavedEstimate).load()
        use_tf32_(False)
        measured = _Measured(options)
        objective, seed = measured.objective, settings.seed
        if options.other.chosen:
            _tell_other(measured, *options.other.chosen)
            return
        density = split = theirs = None
        with RunBars() as bars:
            result = _effective_rank(measured, bars)
            if products := options.products_of_density:
                bars.show("spectral density", 0, None, f"{products} products")
                density = hessian.spectral_density(measured.curvature, products=products, seed=seed)
            if options.split_sample:
                bars.show("λ_max of two halves", 0, None, "")
                first, second = measured.losses(2)
                split = hessian.split_sample((measured.operator(first), measured.operator(second)), seed=seed)
            if options.beside:
                bars.show("κ by PyHessian", 0, None, "at most 200 products")
                theirs = by_pyhessian(objective, seed=seed)
    if math.isnan(result.kappa):
        raise InputError(
            f"model must have curvature, got {result.reason.split(';')[0]}, at a loss of "
            f"{objective.value:.4g} ({measured.facts['history']})"
        )
    if options.as_json:
        kappas = density and {**density.to_json(), "kappas": density.kappas(settings.confidence)}
        record: dict[str, Any] = {"estimate": result.to_json(), "density": kappas}
        record |= {"split_sample": split and split.to_json(), "beside": theirs and theirs.to_json()}
        print_json({**measured.facts, **record})
    else:
        print(_told(result, density, split, theirs, measured.facts))
    if options.plot is not None:
        try:
            written = save_picture(picture(result, density, _about(measured.facts)), options.plot)
        except InputError as error:
            raise InputError(f"{error}; there is no picture, the numbers are printed") from error
        print(f"written to {written}", file=sys.stderr)


class _Measured:
    """The loss that was asked for, and what can be measured of it."""

    def __init__(self, options: KappaOptions) -> None:
        """The model is trained here first, if that is asked for."""
        import torch

        from decomfl_lab.devices import describe, find_device
        from decomfl_lab.layout import Layout
        from decomfl_lab.models.registry import num_parameters
        from decomfl_lab.storage.provenance import provenance
        from hessian.trained_models import scale_of

        self.options = options
        place, whiten = find_device(options.device), options.matrix.whiten
        s = None if whiten is None else scale_of(whiten, trust_code=options.source.trusted)
        self.trained = _trained(options.source, options.settings.seed, place)
        module = self.trained.module.to(place)
        if {p.dtype for p in module.parameters() if p.requires_grad} in ({torch.float32}, {torch.float64}):
            layout = Layout.of(module)
            layout.bind(module, layout.flatten(module))  # one vector for the module and x
        (self.objective,) = self.losses(1)  # the mean loss over the examples, at the model's weights
        # What the numbers belong to.
        where = provenance(self.trained.dataset)
        self.facts = {
            "model": self.trained.name,
            "history": self.trained.history,
            "d": self.objective.d,
            "parameters": "all" if self.objective.d == num_parameters(self.trained.module) else "a subset",
            "data": where["data"],
            "data_digest": where["data_digest"],
            "examples": sum(piece.examples for piece in self.objective.pieces),
            "loss": self.objective.value,
            "loss_function": "the model's own loss"
            if self.trained.loss is None
            else getattr(self.trained.loss, "__name__", type(self.trained.loss).__name__).replace("_", "-"),
            "weight_decay": self.objective.weight_decay,
            "remark": self.objective.remark,
            "batchnorm": self.objective.mode,
            "dtype": str(self.objective.dtype).removeprefix("torch."),
            "code": where["code"],
            "versions": f"Python {where['python']}, torch {where['torch']}",
            "device": describe(self.objective.device),
        }
        self.s = None if s is None else s.to(self.objective.device, self.objective.dtype)
        if whiten is not None:
            self.facts["whitened_by"] = str(whiten)
        self.curvature = self.operator(self.objective)

    def losses(self, parts: int) -> tuple[hessian.MeanLoss, ...]:
        """The loss over the examples, in so many parts of them."""
        n = self.trained.dataset.N
        examples = min(self.options.source.examples or n, n)
        return self.trained.mean_loss(self.options.curvature, examples=examples, parts=parts)

    def operator(self, objective: hessian.MeanLoss, x: Tensor | None = None) -> hessian.Operator:
        """The matrix that was asked for, of a loss at x."""
        from hessian.operators.selection import matrix_of

        return matrix_of(objective, self.options.curvature, x, whiten=self.s)

    def radius(self) -> float:
        """That of Assumption 4's ball, with G over the batches that the examples make."""
        import torch

        from hessian.operators.mean_loss import differentiating

        objective, batch_size = self.objective, self.options.source.batch_size
        x = objective.x.clone().requires_grad_()
        batches = [batch for piece in objective.pieces for batch in piece.cut(batch_size)]
        with differentiating("the gradient"):
            largest = float(torch.stack([objective.piece_gradient(x, batch).norm() for batch in batches]).max())
        return hessian.ball_radius(self.options.other.ball_lr or 0.0, objective.d, largest)


def _tell_other(measured: _Measured, name: str) -> None:
    """Measure and print what is asked for in place of κ by products."""
    from decomfl_lab.progress import RunBars

    options, objective, s = measured.options, measured.objective, measured.s
    settings, asked = options.settings, options.other
    measurement: hessian.ForwardOnly | hessian.BallProbe | hessian.ByLayer
    if name == "forward_only":
        f = None if s is None else hessian.WhitenedObjective(objective, objective.x, s)
        measurement = hessian.forward_only(
            f or objective,
            f.y if f else objective.x,
            seed=settings.seed,
            probes=asked.forward_only,
            mu=options.curvature.mu,
            confidence=settings.confidence,
        )
    elif name == "ball":
        measurement = hessian.ball_probe(
            lambda x: measured.operator(objective, x),
            objective.x,
            measured.radius() if asked.ball is None else asked.ball,
            points=asked.ball_points,
            seed=settings.seed,
            confidence=settings.confidence,
            max_products=min(settings.max_products, 60),
        )
    else:
        with RunBars() as bars:
            measurement = hessian.by_layer(
                measured.curvature,
                **options.asked,
                depth=asked.depth,
                on_layer=lambda layer, number, layers: bars.show("layers", number, layers, layer),
            )
    if options.as_json:
        print_json({**measured.facts, name: measurement.to_json()})
    else:
        print(f"{measurement.summary()}\n{_about(measured.facts)}")
    if isinstance(measurement, hessian.ByLayer) and options.plot is not None:
        print(f"written to {measurement.plot(options.plot)}", file=sys.stderr)


def _effective_rank(measured: _Measured, bars: RunBars) -> hessian.EffectiveRank:
    """κ, with a bar of the products."""
    from hessian.kappa.interval.forecast import memory_of_an_estimate

    options, curvature, s = measured.options, measured.curvature, measured.s
    settings, trace = options.settings, options.matrix.trace
    plain = curvature.inner if isinstance(curvature, hessian.WhitenedOperator) else curvature
    twin = scaled = None  # the Gauss-Newton matrix, where it has the trace of the Hessian
    if trace != "probes" and isinstance(plain, hessian.HessianOperator):
        twin = hessian.trace_operator(plain)
        scaled = twin if s is None else hessian.WhitenedOperator(twin, s)
    if curvature.d >= FORECAST:
        print(memory_of_an_estimate(curvature, settings), file=sys.stderr)
    return hessian.effective_rank(
        curvature,
        **options.asked,
        within=None if options.within is None else span(options.within),
        overlap=options.overlap,
        checkpoint=options.checkpoint,
        on_progress=_Progress(settings, curvature.d, bars),
        trace_operator=scaled if trace == "gauss-newton" else None,
        trace=hessian.gauss_newton_trace(twin, whiten=s) if twin is not None and trace == "exact" else None,
    )


class _Progress:
    """Shows every product on a bar, and warns once where products or hours are many."""

    def __init__(self, settings: Settings, d: int, bars: RunBars) -> None:
        self.settings, self.d, self.bars = settings, d, bars
        self.first: tuple[int, float] | None = None
        self.forecast = False  # whether time is forecast
        self.told, self.logger = False, logging.getLogger("decomfl_lab")

    def __call__(self, at: hessian.EffectiveRankProgress) -> None:
        """Show where the estimate stands."""
        settings, products = self.settings, self.settings.products
        if self.first is None:
            self.first = at.products, time.monotonic()  # it is tried, and takes longer
        elif not self.forecast and (self.d >= FORECAST or at.products >= FORETOLD):
            from hessian.kappa.interval.forecast import time_of_an_estimate

            self.forecast, (first, since) = True, self.first
            pace = (time.monotonic() - since) / (at.products - first)
            if self.d >= FORECAST or pace * min(settings.limit, self.d) > LONG:
                print(time_of_an_estimate(pace, settings, self.d), file=sys.stderr)
        name = PARTS[settings.part].name
        words = f"λ_max {at.lambda_max:.4g}, {name} {at.kappa:.4g} in {at.low:.4g} .. {at.high:.4g}"
        if at.needed is not None and products is None:
            # With the range that holds in nine of ten runs.
            takes = f"± {100 * settings.rtol:g} % of {name} takes about {at.needed} "
            takes += f"({max(at.products, at.needed // 2)} to {2 * at.needed})"
            words += f"; {takes} in all"
            if at.products >= FORETOLD and at.needed > settings.max_products and not self.told:
                self.told = True
                self.logger.warning(
                    f"{takes} products: --max-products {settings.max_products} is not enough, and the interval will "
                    "be wider"
                )
        self.bars.show("products", at.products, settings.limit, words)


def _trained(asked: SourceOptions, seed: int, device: torch.device) -> TrainedModel:
    """The model that the arguments name, trained here, on the device, if that is asked for."""
    from decomfl_lab.datasets.images import DATA_SETS
    from decomfl_lab.language.causal_model import is_pretrained
    from decomfl_lab.models.registry import MODELS
    from decomfl_lab.objectives.descent import Descent
    from decomfl_lab.progress import RunBars
    from decomfl_lab.runs.folder import CHECKPOINT_FILE
    from hessian.trained_models import from_run, from_task, from_weights, trained_here

    source, model, steps = asked.source, asked.model, asked.train_steps
    data, loss = asked.data, asked.loss
    task, task_data = asked.task, asked.task_data
    descent = Descent(optimizer=asked.optimizer, lr=asked.lr, batch_size=asked.batch_size, seed=seed)
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
        folder = source if source.is_dir() else source.parent
        return from_run(folder, model=model, data=data, loss=loss, trust_code=asked.trusted)
    if task is not None:
        require_choice("task", task, TASKS)
        require_unset(["data", "loss"], "a task, which has its own")
        require(not steps, "train_steps", "stay unset for a task", steps)
        if model is None:
            raise InputError("model must be given with a task: a folder, a GGUF file or a name of the hub")
        if source is not None:
            return from_weights(source, model=model, task=task, files=task_data)
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


def _about(facts: dict[str, Any]) -> str:
    """The facts of ``_Measured`` in a sentence or two: the model, its loss, the data."""
    norm = "" if facts["batchnorm"] == "none" else f", BatchNorm {facts['batchnorm']}"
    decay = f" with weight decay {facts['weight_decay']:g}" if facts["weight_decay"] else ""
    part = "" if facts["parameters"] == "all" else " (a subset of the parameters)"
    return (
        f"{facts['model']}, {facts['history']}; {facts['loss_function']} {facts['loss']:.4g}{decay} on "
        f"{facts['examples']:,} training examples; d = {facts['d']:,}{part}; {facts['dtype']}{norm}, "
        f"on {facts['device']}. Data: {facts['data']}."
    )


def _told(
    result: hessian.EffectiveRank,
    density: hessian.SpectralDensity | None,
    split: hessian.SplitSample | None,
    theirs: ByPyHessian | None,
    facts: dict[str, Any],
) -> str:
    """The result in words, and what else was asked for."""
    from hessian.readings import Reading, table

    title, readings, remark = result.report()
    rows = [*readings, *([theirs.reading] if theirs is not None else [])]
    if split is not None:
        of_all = Reading("κ of all data", math.nan, *split.kappa(result.trace.value), "trace / λ_max of all data")
        rows += [*split.readings, of_all]
    return "\n".join([title, table(rows), remark, *([density.summary()] if density else []), _about(facts)])
