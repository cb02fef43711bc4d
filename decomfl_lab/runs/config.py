"""The configuration of a run: one frozen dataclass, the whole truth, checked when it is made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decomfl_lab.datasets.splits import SPLITS
from decomfl_lab.errors import InputError, require, require_choice, require_finite_positive, require_int
from decomfl_lab.estimators.second_differences import require_moment_law
from decomfl_lab.language.adapters import TUNINGS
from decomfl_lab.language.tasks import TASKS
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.objectives.normalisation import TREATMENTS
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.seeds import Seeding

__all__ = ["TrainConfig", "config_from_mapping", "is_schedule", "parse_schedule", "read_config"]

METHODS: dict[str, str] = {
    "decomfl": "scalars up, missed records down; clients rebuild",
    "decomfl-projection": "the same with scalars ⟨∇f, z⟩ by one backward pass",
    "fedzo": "K local zeroth-order steps along own directions; models both ways",
    "fedavg": "K local first-order steps; models both ways",
    "fedcom": "fedavg with the update quantised on the way up",
    "fedavg-topk": "fedavg with the largest elements of the update, and their positions, on the way up",
    "baffle": "the model down, scalars up; clients take no step",
    "mezo": "one agent with all the data, no communication",
}
REPLAYING = ("decomfl", "decomfl-projection", "baffle")
"""Methods whose model is a replica that follows records."""
LAGGING = ("decomfl", "decomfl-projection")
"""Methods whose clients keep their model between rounds, and so lag and catch up."""
FIRST_ORDER = ("fedavg", "fedcom", "fedavg-topk")


def _option(default: Any, help_: str) -> Any:
    """A field whose help becomes its command-line flag's and its documentation."""
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"help": help_})
    return field(default=default, metadata={"help": help_})


def is_schedule(option: dataclasses.Field[Any]) -> bool:
    """Whether a field of TrainConfig holds a schedule, {round: value}."""
    return option.default is dataclasses.MISSING


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. Defaults are the authors' MNIST settings as their logs have them ("as-plotted")."""

    method: str = _option("decomfl", f"one of {', '.join(METHODS)}")
    model: str = _option(
        "cnn-mnist",
        "cnn-mnist (d = 28,938), cnn-fashion (1,206,590; 62 outputs), cnn-fashion-10, resnet8, resnet8-half, resnet20 "
        "(without normalisation), resnet8-bn, resnet8-half-bn, resnet20-bn, mlp or logistic; for text gpt-tiny, "
        "gpt-tiny-tied or gpt-10m; for a task a causal language model: a folder of transformers, a GGUF file or a name "
        "of the hub (facebook/opt-125m)",
    )
    batchnorm: str = _option(
        "batch",
        "statistics of BatchNorm: batch (of the batch in training, of the calibration images in evaluation) or frozen "
        "(of x_0 on the calibration images, for ever); there are no running ones, which no record could replay",
    )
    calibration_examples: int = _option(500, "calibration images, a fixed random choice of the training images")
    data: str = _option("mnist", "data set: mnist, fashion-mnist, cifar10, digits or text")
    task: str = _option("", f"fine-tune a causal language model, in place of data: {', '.join(TASKS)}")
    task_data: str = _option("", "folder of the task's files in the hub's layout; empty: $DECOMFL_DATA/<task>")
    max_length: int = _option(0, "tokens of a task's prompt, its last ones; 0: the paper's (sst2 31, others 2047)")
    cb_two_way: bool = _option(False, "of cb, count neutral as entailment, as the authors' code does")
    tune: str = _option(
        "full", "of a task's model, what is trained: full, lora (queries and values) or norms; the rest is frozen"
    )
    lora_rank: int = _option(8, "r of lora")
    lora_alpha: float = _option(16.0, "α of lora, which adds (α/r)·B·A; the paper has 8, the authors' code 16")
    split: str = _option(
        "iid",
        "iid, dirichlet (Dir(α·1)) or dirichlet-total (Dir(α·p), the authors' reading)",
    )
    alpha: float = _option(1.0, "Dirichlet concentration α of Dir(α·1), one α a class")
    clients: int = _option(100, "M, clients in total")
    sampled: int = _option(10, "m, clients sampled a round, uniformly without replacement")
    rounds: int = _option(100, "R, communication rounds")
    local_steps: int = _option(1, "K, local steps a round")
    perturbations: int = _option(20, "P, directions a local step")
    lr: float = _option(0.001, "η, learning rate")
    mu: float = _option(1e-4, "μ, smoothing radius of the finite difference")
    rule: str = _option(
        "sgd", "update rule of replicas: sgd (momentum β), sign (ZO-SignSGD, no β) or adamm (ZO-AdaMM, β₁ = β)"
    )
    momentum: float = _option(0.9, "β in [0, 1); 0 is plain SGD")
    momentum_form: str = _option("torch", "torch: m = βm + g; paper: m = βm + (1-β)g")
    weight_decay: float = _option(1e-5, "λ, weight decay")
    optimizer: str = _option("sgd", "local optimizer of fedavg, fedcom and fedavg-topk: sgd or adam")
    quantize_bits: int = _option(8, "bits an element of fedcom's uplink, 2 to 8")
    top_k: float = _option(0.1, "share of the elements that fedavg-topk sends up, in (0, 1]")
    estimator: str = _option("central", "scalar estimator: forward or central differences")
    distribution: str = _option("gaussian", "law of the directions: gaussian, sphere or rademacher")
    batch_size: int = _option(256, "B, examples a local step; a client's whole data if it has fewer")
    lr_schedule: Mapping[int, float] = _option({}, "η from a round on, as ROUND=VALUE,...: e.g. 500=0.0005")
    perturbation_schedule: Mapping[int, int] = _option({}, "P from a round on, as ROUND=VALUE,...: e.g. 500=50")
    precision: str = _option("float32", "what replicas are kept in: float32, bfloat16 or float16 (decomfl only)")
    rounding: str = _option(
        "stochastic", "of 16-bit replicas after every step: stochastic (seeded), compensated or nearest"
    )
    compute: str = _option(
        "float32",
        "what losses are computed in: float32; tf32, on a GPU, with products of 10 bits; or of a task bfloat16: x + μz "
        "is formed in float32 and then rounded, so that μ should be well above 2^-8 of the weights' size (5e-3 for "
        "0.2); replicas stay float32",
    )
    grid: int = _option(
        0, "below 0: keep the model on multiples of 2^GRID, so that local steps are undone by arithmetic; 0: off"
    )
    lean: bool = _option(False, "clients form x + μz a layer at a time, never as a whole: less memory, more time")
    rebuild: str = _option(
        "replay",
        "how a simulated client gets to x_r: replay of the records that it is sent, or copy of the bits that a replay "
        "would give (the same run to the bit, in less time; every message is encoded and counted all the same)",
    )
    engine: str = _option(
        "auto",
        "who evaluates losses and gradients: auto (fused on the CPU, batched on a GPU, where they can), fused, "
        "threads, batched, serial or plain; scalars agree to rounding",
    )
    private_seeds: bool = _option(
        False, "clients share a key that the server does not know: it averages and records, but cannot form z"
    )
    seeds: str = _option(
        "per-step", f"how many seeds a plan or a record carries: {', '.join(Seeding)} (each client is told it once)"
    )
    tracking: str = _option("server", "who remembers which round a client holds: server, or clients, who then say it")
    history: int = _option(
        0, "records the server keeps at most; whoever is older pulls its model. 0: as many as someone may need"
    )
    revert: str = _option(
        "snapshot",
        "after local steps: snapshot brings x back to the bit; sync corrects x when the round's record comes, "
        "without a snapshot and up to rounding (plain SGD; column drift)",
    )
    server_model: bool = _option(False, "let the server keep a model too (the algorithm does not need one)")
    pull: str = _option("never", "auto: send the server's model where that is there sooner than the records; or never")
    bandwidth: float = _option(12.5e6, "bytes a second to a client, for pull auto")
    replay_ns: float = _option(1.0, "ns a client needs for an element and missed direction, for pull auto")
    log_kappa: bool = _option(
        False,
        "log tr(H), ‖H‖_F and a bracket of κ from second differences: one forward pass more a local step, the same run "
        "to the bit, nothing sent (decomfl and baffle, central differences, P of at least 3)",
    )
    eval_every: int = _option(10, "rounds between two evaluations on the held-out data")
    test_examples: int = _option(0, "held-out examples to evaluate on, a fixed random choice; 0 for all")
    seed: int = _option(0, "seed of everything random: weights, split, batches, clients, directions")

    def __post_init__(self) -> None:
        require_choice("method", self.method, METHODS)
        require_choice("split", self.split, SPLITS)
        require_choice("estimator", self.estimator, ("forward", "central"))
        require_choice("distribution", self.distribution, tuple(d.value for d in Distribution))
        require_choice("momentum_form", self.momentum_form, ("torch", "paper"))
        require_int("clients M", self.clients, 1)
        require_int(f"sampled clients m (of M={self.clients})", self.sampled, 1, self.clients)
        for name, label in (
            ("rounds", "rounds R"),
            ("local_steps", "local_steps K"),
            ("perturbations", "perturbations P"),
            ("batch_size", "batch_size B"),
            ("eval_every", "eval_every"),
        ):
            require_int(label, getattr(self, name), 1)
        require_int("test_examples", self.test_examples, 0)
        if self.task:
            require_choice("task", self.task, TASKS)
            require(self.data == TrainConfig.data, "data", "be left alone with a task, which has its own", self.data)
        require(bool(self.task) or not self.task_data, "task_data", "be empty without a task", self.task_data)
        require_int("max_length", self.max_length, 0)
        require(bool(self.task) or not self.max_length, "max_length", "be 0 without a task", self.max_length)
        require(self.task == "cb" or not self.cb_two_way, "cb_two_way", "be off but for task cb", self.cb_two_way)
        require_choice("tune", self.tune, TUNINGS)
        require(bool(self.task) or self.tune == "full", "tune", "be full without a task", self.tune)
        require_int("lora_rank", self.lora_rank, 1)
        require_finite_positive("lora_alpha", self.lora_alpha)
        require_choice("batchnorm", self.batchnorm, TREATMENTS)
        require_int("calibration_examples", self.calibration_examples, 2)
        require_finite_positive("lr η", self.lr)
        require_finite_positive("mu μ", self.mu)
        require_finite_positive("alpha", self.alpha)
        _in_range("momentum β", self.momentum, 0.0, 1.0)
        _in_range("weight_decay λ", self.weight_decay, 0.0, math.inf)
        require_choice("rule", self.rule, ("sgd", "sign", "adamm"))
        require(self.rule == "sgd" or not self.grid, "rule", "be sgd on the grid", self.rule)
        require_choice("precision", self.precision, ("float32", *Format))
        require_choice("rounding", self.rounding, ("stochastic", "compensated", "nearest"))
        require_int("grid", self.grid, -100, 0)
        exact = self.precision == "float32" and not self.grid
        require(exact or self.method in REPLAYING, "precision and grid", "be left alone for this method", self.method)
        require_choice("compute", self.compute, ("float32", "tf32", "bfloat16"))
        whole = self.compute != "bfloat16"
        require(whole or bool(self.task), "compute", "be float32 without a task", self.compute)
        by_losses = self.method not in (*FIRST_ORDER, "decomfl-projection")
        require(whole or by_losses, "compute", "be float32 for a method that needs gradients", self.method)
        require(whole or not self.lean, "lean", "be off where losses are computed in bfloat16", self.lean)
        require(
            whole or not self.log_kappa, "log_kappa", "be off where losses are computed in bfloat16", self.log_kappa
        )
        require_choice("optimizer", self.optimizer, ("sgd", "adam"))
        require_int("quantize_bits", self.quantize_bits, 2, 8)
        _in_range("top_k", self.top_k, 0.0, math.nextafter(1.0, 2.0))
        require(self.top_k > 0, "top_k", "be in (0, 1]", self.top_k)
        one_step = self.method != "baffle" or self.local_steps == 1
        require(one_step, "local_steps K", "be 1 for baffle, whose clients take no step", self.local_steps)
        alone = self.method != "mezo" or self.clients == self.sampled == 1
        require(alone, "clients M and sampled m", "be 1 for mezo, which is one agent", (self.clients, self.sampled))
        thin = not self.lean or self.method in REPLAYING
        require(thin, "lean", "be off for methods that send models", self.lean)
        require_choice("rebuild", self.rebuild, ("replay", "copy"))
        equal = self.rebuild == "replay" or (self.method in LAGGING and self.revert == "snapshot")
        require(equal, "rebuild", "be replay with revert sync and for methods that send models", self.rebuild)
        require_choice("engine", self.engine, ("auto", "fused", "threads", "batched", "serial", "plain"))
        require_choice("pull", self.pull, ("never", "auto"))
        require_finite_positive("bandwidth", self.bandwidth)
        require_finite_positive("replay_ns", self.replay_ns)
        lagging = self.method in LAGGING
        can_pull = self.pull == "never" or (self.server_model and lagging)
        require(can_pull, "pull", "be never for a server without a model (server_model)", self.pull)
        require_choice("seeds", self.seeds, tuple(Seeding))
        sends = self.seeds == Seeding.PER_STEP or self.method in REPLAYING
        require(sends, "seeds", f"be {Seeding.PER_STEP} for a method that sends none", self.seeds)
        require_choice("tracking", self.tracking, tuple(Tracking))
        require(lagging or self.tracking == Tracking.SERVER, "tracking", "be server where nobody lags", self.tracking)
        require_int("history", self.history, 0)
        require(lagging or not self.history, "history", "be 0 where nobody lags", self.history)
        reaches = not self.history or self.server_model or self.sampled == self.clients
        missing = "be 0 for a server without a model (server_model): whoever is older than the history must pull it"
        require(reaches, "history", missing, self.history)
        require_choice("revert", self.revert, ("snapshot", "sync"))
        plain = self.rule == "sgd" and not (self.momentum or self.weight_decay or self.grid) and exact and lagging
        corrected = "be snapshot unless decomfl runs plain SGD in 32 bits (momentum 0, weight_decay 0, no grid)"
        require(plain or self.revert == "snapshot", "revert", corrected, self.revert)
        keyed = not self.private_seeds or (self.method in REPLAYING and self.method != "baffle")
        require(keyed, "private_seeds", "be off for a method whose server forms the model", self.method)
        blind = not (self.private_seeds and self.server_model)
        require(blind, "server_model", "be off with private seeds: the server cannot form z", self.server_model)
        fixed = not self.perturbation_schedule or self.method not in ("fedzo", "mezo")
        require(fixed, "perturbation_schedule", f"be empty for {self.method}", self.perturbation_schedule)
        if self.log_kappa:
            measured = self.method in ("decomfl", "baffle") and self.estimator == "central"
            rule = "be off but for decomfl and baffle with central differences"
            require(measured, "log_kappa", rule, (self.method, self.estimator))
            require_moment_law("distribution for log_kappa", Distribution(self.distribution))
            for number in (self.perturbations, *self.perturbation_schedule.values()):
                require_int("perturbations P for log_kappa", number, 3)
        for r, value in self.lr_schedule.items():
            require_int("round in lr_schedule", r, 1)
            require_finite_positive(f"lr_schedule at round {r}", value)
        for r, number in self.perturbation_schedule.items():
            require_int("round in perturbation_schedule", r, 1)
            require_int(f"perturbation_schedule at round {r}", number, 1)
        require_int("seed", self.seed, 0, 2**64 - 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, schedules with text keys (as TOML and JSON want them); without data where there is a task."""
        values = dataclasses.asdict(self)
        if self.task:
            del values["data"]
        for name in ("lr_schedule", "perturbation_schedule"):
            values[name] = {str(r): v for r, v in sorted(values[name].items())}
        return values

    def to_toml(self) -> str:
        """The configuration as TOML that ``read_config`` reads back."""
        plain, tables = [], []
        for key, value in self.to_dict().items():
            if isinstance(value, dict):
                tables.append(f"\n[{key}]\n" + "".join(f"{r} = {v!r}\n" for r, v in value.items()))
            else:
                plain.append(f"{key} = {json.dumps(value)}\n")
        return "".join(plain + tables)

    def fingerprint(self, *, data: str, code: str) -> str:
        """Hex key of a result: BLAKE2b of configuration (seed included), data digest and code version."""
        message = json.dumps([self.to_dict(), data, code], sort_keys=True)
        return hashlib.blake2b(message.encode(), digest_size=8).hexdigest()


def _in_range(name: str, value: Any, low: float, below: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    limit = f"in [{low:g}, {below:g})" if math.isfinite(below) else f"a finite number of at least {low:g}"
    require(is_number and math.isfinite(value) and low <= value < below, name, f"be {limit}", value)


def parse_schedule(name: str, text: str) -> dict[int, float]:
    """{round: value} from "500=0.1,1000=0.05"; InputError naming the piece that does not fit."""
    schedule: dict[int, float] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        try:
            r, value = piece.split("=")
            schedule[int(r)] = float(value) if "lr" in name else int(value)
        except ValueError:
            raise InputError(f"{name} must be ROUND=VALUE pieces joined by commas, got {piece!r}") from None
    return schedule


def config_from_mapping(values: Mapping[str, Any], origin: str) -> TrainConfig:
    """A TrainConfig from plain values; InputError naming an unknown key or a value of a wrong type.

    MeZO is one agent: there ``clients`` and ``sampled`` are 1 where they are not given.
    """
    if values.get("method") == "mezo":
        values = {"clients": 1, "sampled": 1, **values}
    fields = {f.name: f for f in dataclasses.fields(TrainConfig)}
    clean: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"key in {origin} must be one of {', '.join(fields)}, got {key!r}")
        default = fields[key].default
        if is_schedule(fields[key]):
            require(isinstance(value, Mapping), f"{key} in {origin}", "be a table of ROUND = VALUE", value)
            try:
                value = {int(r): v for r, v in value.items()}
            except ValueError:
                raise InputError(f"{key} in {origin} must have whole rounds as keys, got {list(value)}") from None
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        elif type(value) is not type(default):
            raise InputError(f"{key} in {origin} must be of type {type(default).__name__}, got {value!r}")
        clean[key] = value
    return TrainConfig(**clean)


def read_config(path: Path) -> dict[str, Any]:
    """The values in a TOML file; InputError if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"config must be a readable TOML file, got {path} ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config must be valid TOML, got {path} ({error})") from None
