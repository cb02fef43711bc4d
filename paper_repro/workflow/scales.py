"""How large a reproduction is, read from ``scales.toml``. Only ``full`` has the paper's own numbers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from decomfl_lab.errors import require, require_choice
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.runs.config import TrainConfig
from paper_repro.pretraining.family import PretrainConfig
from paper_repro.workflow.claims import PARTS, SCALE_NAMES
from theory.notation.printed import EXAMPLES, PARAMETERS, RATES, RESULTS, ROUNDS, model_terabytes

__all__ = [
    "BOARD_COMMON",
    "BOARD_PROBLEMS",
    "BOARD_VARIANTS",
    "FIG3",
    "READINGS",
    "SCALES",
    "TASK_ROWS",
    "BoardScale",
    "EdgeScale",
    "Fig2Scale",
    "Fig3Scale",
    "Fig3Settings",
    "HessianScale",
    "ImageScale",
    "LanguageScale",
    "MemoryScale",
    "ProjectionScale",
    "Race",
    "Reading",
    "Scale",
    "SizesScale",
    "TaskTuning",
    "TheoryScale",
    "changed",
]

_DATA: Final[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "scales.toml").read_text(encoding="utf-8"))
_USERS: Final[Mapping[str, tuple[str, ...]]] = {"fig2": ("fig2", "table1"), "fig3": ("fig3", "topk")}
"""The parts that are made at the sizes of one, where they are several."""


# --- values of TOML and of --set --------------------------------------------------------------------------------------


def _settings(size: type[Any]) -> list[str]:
    return [each.name for each in fields(size)]


def _typed(value: Any, hint: Any, name: str) -> Any:
    """A value of TOML as what a field of this type holds: tuples for lists, dataclasses for tables or lists.

    Raises:
        InputError: If it is something else.
    """
    # int | None has the origin UnionType and the arguments int, None; tuple[int, ...] has tuple and int, Ellipsis.
    of, args = get_origin(hint), get_args(hint)
    if of is UnionType:  # of None and something, which is what a table has
        hint = args[0]
    if is_dataclass(hint) and isinstance(hint, type):
        hints, known = get_type_hints(hint), _settings(hint)
        # A list as long as the fields stands for a table: [300, 0.003, 32] is a Tuning.
        given = dict(zip(known, value, strict=False)) if isinstance(value, list) and len(value) == len(known) else value
        require(isinstance(given, dict) and set(given) <= set(known), name, f"have {', '.join(known)}", value)
        return hint(**{key: _typed(each, hints[key], f"{name}.{key}") for key, each in given.items()})
    if of is Mapping:
        require(isinstance(value, dict), name, "be a table, as {10 = 20}", value)
        # TOML's keys are texts; {10 = 20} is meant as numbers.
        whole = all(str(key).isdigit() for key in value) or args[0] is not int
        require(whole, name, "have whole numbers for names", value)
        return {int(key) if str(key).isdigit() else key: _typed(value[key], args[1], f"{name}.{key}") for key in value}
    if of is tuple:
        require(isinstance(value, list | tuple), name, "be a list, as [1, 2]", value)
        return tuple(_typed(each, args[0], name) for each in value)
    if hint is float:
        require(type(value) in (int, float) and math.isfinite(value), name, "be a finite number", value)
    elif hint is not Any:
        # Not isinstance: True is an int.
        require(type(value) is hint, name, {int: "be a whole number", str: "be text"}[hint], value)
    return value


def _with(table: Any, path: Sequence[str], value: Any, name: str) -> dict[str, Any]:
    """The table with another value at a path; InputError where there is no table."""
    require(isinstance(table, dict), name, "be set whole", table)
    first, *others = path
    return {**table, first: _with(table.get(first), others, value, f"{name}.{first}") if others else value}


def _leaves(value: Any) -> Iterator[Any]:
    """The numbers and texts in a value, () for what is empty."""
    # Dataclass, mapping and sequence alike come down to a list of parts.
    inner = vars(value) if is_dataclass(value) else value
    parts = list(inner.values()) if isinstance(inner, Mapping) else inner
    if not isinstance(parts, list | tuple):
        yield parts
    elif not parts:
        yield ()
    else:
        for each in parts:
            yield from _leaves(each)


def _shown(value: Any) -> str:
    """A value as it is written."""
    if is_dataclass(value):
        return _shown({name: each for name, each in vars(value).items() if each is not None})
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_shown(each)}" for name, each in value.items()) + "}"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, tuple) else str(value)


# --- the parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A reading of the paper's image settings: configurations of DeComFL and FedAvg, η and K."""

    split: str
    decomfl: Mapping[str, Any]
    fedavg: Mapping[str, Any]
    lr_left: float
    lr_right: float
    fedavg_steps: tuple[int, ...]


READINGS: dict[str, Reading] = {name: _typed(own, Reading, name) for name, own in _DATA["readings"].items()}


@dataclass(frozen=True, kw_only=True)
class ImageScale:
    """Sizes of runs on images."""

    M: int  # the number of clients
    m: int  # the number of clients sampled a round (a tenth of M, as in the paper)
    batch_size: int  # the batch size B, where no other is named
    seeds: tuple[int, ...] = (0,)  # the seeds of the runs, where no fewer are named
    test_examples: int = 0  # held-out images of an evaluation; 0 for all

    def config(self, **given: Any) -> TrainConfig:
        """A run of these sizes on MNIST with the small CNN, unless it is said otherwise."""
        sizes = {"clients": self.M, "sampled": self.m, "batch_size": self.batch_size}
        common = {"data": "mnist", "model": "cnn-mnist", "test_examples": self.test_examples}
        return TrainConfig(**{**sizes, **common, **given})


@dataclass(frozen=True, kw_only=True)
class Fig2Scale(ImageScale):
    """Sizes of the runs behind Figure 2 and Table 1."""

    local_rounds: Mapping[int, int]  # left panel: rounds for each K, by projection
    perturbation_rounds: int  # right panel: rounds for every P, by projection
    # left panel: rounds by finite differences for each K, drawn over the others (first seed)
    local_differences: Mapping[int, int]
    perturbation_differences: Mapping[int, int]  # right panel: the same for each P
    written_rounds: Mapping[int, int]  # the "as-written" reading: rounds for each K, with the first seed
    written_perturbation_rounds: int  # the same for every P
    written_method: str = "decomfl"  # the method of that reading: decomfl (finite differences) or decomfl-projection
    fedavg_rounds: int  # rounds of the baseline
    fedzo_rounds: int  # the rounds of Table 1's FedZO
    fedzo_method: str = "fedzo"  # its method: fedzo (finite differences) or fedzo-projection
    # factor on the learning rate of DeComFL in the "as-plotted" reading, whose η/(1 - β) = 0.01 is at the edge of
    # stability: smaller batches than the authors' may need a smaller one
    eta_factor: float = 1.0
    eval_every: Mapping[int, int]  # rounds of DeComFL between two evaluations, for each K
    written_every: int = 1  # the same in the "as-written" reading, for all
    fedavg_every: int = 1  # the same of the baseline

    def __post_init__(self) -> None:
        require_choice("written_method", self.written_method, ("decomfl", "decomfl-projection"))
        require_choice("fedzo_method", self.fedzo_method, ("fedzo", "fedzo-projection"))


@dataclass(frozen=True, kw_only=True)
class Fig3Scale(ImageScale):
    """Sizes of the runs behind Figure 3 and the top-k figure. All have the authors' schedules, as far as they get."""

    rounds: int  # the rounds of DeComFL by projection
    differences: int  # the rounds of DeComFL by finite differences, drawn over it
    baseline_batch: int  # B of the first-order methods
    baseline_rounds: int  # the rounds of the first-order methods
    baseline_seeds: tuple[int, ...] = (0,)  # the seeds of the first-order methods
    eval_every: int = 1  # rounds of DeComFL between two evaluations
    baseline_every: int = 1  # the same of the first-order methods
    # the rounds of the first-order methods before their first evaluation; 0 for ``baseline_every``
    baseline_first: int = 0


@dataclass(frozen=True, kw_only=True)
class Fig3Settings:
    """Figure 3 as the authors' logs have it, at every scale."""

    K: int  # local steps
    P: Mapping[int, int]  # {round: the directions of a step from it on}
    rates: Mapping[int, float]  # {round: the learning rate of DeComFL from it on}
    decomfl: Mapping[str, Any]  # what else DeComFL has
    first_order: Mapping[str, Any]  # what the other methods have
    quantize_bits: int  # bits of a number that FedCom sends
    top_k: float  # the share of the entries that FedAvg + Top-k sends

    @property
    def perturbations(self) -> Schedule[int]:
        """P as a function of the round."""
        return Schedule(self.P[0], {r: P for r, P in self.P.items() if r})


FIG3: Final[Fig3Settings] = _typed(_DATA["fig3"]["logs"], Fig3Settings, "fig3.logs")


@dataclass(frozen=True, kw_only=True)
class ProjectionScale(ImageScale):
    """Sizes of the runs behind the projection figure."""

    K: int  # local steps
    P: int  # directions a step
    eta: float  # the learning rate η that ``factors`` multiply
    rounds: int  # the rounds of every run by projection
    differences: int  # the rounds of every run by finite differences, with the first seed
    factors: tuple[float, ...]  # learning rates, in multiples of ``eta``
    eval_every: int = 2  # rounds between two evaluations


@dataclass(frozen=True)
class MemoryScale:
    """Sizes of the models whose memory is measured."""

    d: tuple[int, ...]  # their numbers of parameters, in eight layers

    def __post_init__(self) -> None:
        require(min(self.d, default=0) >= 1000, "d", "be 1000 at least", self.d)


@dataclass(frozen=True, kw_only=True)
class EdgeScale(ImageScale):
    """Sizes of the runs at the edge of stability. A line of values is run with everything else as in Figure 2."""

    steps: int  # local steps of a run; K of them are a round
    factors: tuple[float, ...]  # η/(1 − β) in multiples of Figure 2's 0.01
    small_batch: int  # a smaller B, for the two lines below
    small_factors: tuple[float, ...]  # factors that are also run with it
    differences: tuple[float, ...]  # factors that are also run with it by finite differences
    Bs: tuple[int, ...] = ()  # batch sizes
    Ps: tuple[int, ...] = ()  # directions a step
    Ks: tuple[int, ...] = ()  # local steps a round
    betas: tuple[float, ...] = ()  # momentum β, at Figure 2's η/(1 − β)
    measurements: int = 20  # evaluations of a run, each with the trace of the curvature and its top
    examples: int = 200  # the number of training images whose mean loss has the curvature
    products: int = 8  # the number of products with the curvature a measurement


@dataclass(frozen=True, kw_only=True)
class HessianScale:
    """Sizes behind the figure of Hessian eigenvalues. The paper names none of them."""

    model: str  # the small ResNet
    steps: tuple[int, ...]  # first-order steps after which the spectrum is taken, ascending
    batch_size: int  # examples of a step
    lr: float  # the learning rate of Adam
    examples: int  # training images whose mean loss has the Hessian
    products: int  # products of the spectral density
    probes: int  # its random probes
    gauss_newton: int  # products for κ of the Gauss-Newton matrix

    def __post_init__(self) -> None:
        ascending = list(self.steps) == sorted(set(self.steps)) and self.steps[-1:] > (0,)
        require(ascending, "steps", "ascend to a number above 0", self.steps)


@dataclass(frozen=True, kw_only=True)
class TheoryScale:
    """Sizes behind the figures of bounds beside truths."""

    per_decade: int  # values of d and κ a decade
    runs: int  # simulated runs a point
    factor: int  # the factor between two values of m, P or K
    cells: int  # the number of cells of a step-size map along each axis
    models: tuple[str, ...]  # the models that are trained on scikit-learn's digits
    rounds: int  # the rounds of their training
    seeds: tuple[int, ...]  # the seeds of their training


@dataclass(frozen=True)
class TaskTuning:
    """Rounds R, learning rate η and batch size B of fine-tuning a model to a task."""

    rounds: int
    lr: float
    batch_size: int


TASK_ROWS: dict[str, str] = dict(zip(("sst2", "cb", "wsc", "wic", "rte", "boolq"), EXAMPLES, strict=True))
TASK_ROWS["cb-two-way"] = "CB"
"""The row of each task in the paper's tables."""


def _papers_settings(row: str) -> dict[str, TaskTuning]:
    """A row of the paper's table of settings, B = 32."""
    # The authors' other reading of CB has no LoRA.
    tasks = [task for task in TASK_ROWS if task != "cb-two-way" or "LoRA" not in row]
    return {task: TaskTuning(ROUNDS[row][TASK_ROWS[task]], RATES[row][TASK_ROWS[task]], 32) for task in tasks}


def _first_order_settings(model: str) -> dict[str, TaskTuning]:
    """The authors' script, η = 0.001; rounds as the costs imply them: 500, 1000 or 2000, one rounds to the next 500."""
    costs = {task: RESULTS[model][row][0].cost or 0.0 for task, row in TASK_ROWS.items()}
    # The cost of 500 rounds is what one unit of the printed cost stands for.
    rounds = {task: 500 * round(cost / model_terabytes(500, PARAMETERS[model])) for task, cost in costs.items()}
    return {task: TaskTuning(R, 1e-3, 16 if task == "boolq" else 32) for task, R in rounds.items()}


@dataclass(frozen=True, kw_only=True)
class LanguageScale:
    """Sizes of the runs behind the tables of fine-tuning. What a mapping of tasks does not have is not run."""

    # the stand-in for each of the paper's models: a size of ``Scale.pretrained``, or a name of the hub
    models: Mapping[str, str]
    # the settings of zeroth-order methods, by default the paper's: {model, or model+LoRA: {task: tuning}}; "cb-two-way"
    # is CB in the authors' reading
    settings: Mapping[str, Mapping[str, TaskTuning]] = field(
        default_factory=lambda: {row: _papers_settings(row) for row in ROUNDS}
    )
    # the settings of FedAvg, by default the authors' script's; the paper has it for all parameters only
    first_order: Mapping[str, Mapping[str, TaskTuning]] = field(
        default_factory=lambda: {model: _first_order_settings(model) for model in RESULTS}
    )
    split: str  # how the training examples go to the clients; the authors have dirichlet-total with α = 1
    mezo_batch: int  # the batch size B of MeZO's one agent
    # the tasks for which DeComFL also runs with P = 5 where all parameters are trained (the paper: none)
    five: tuple[str, ...]
    max_length: int  # the most tokens of a prompt, except for SST-2 (31 at most); 0 for the authors' 2047
    test_examples: int  # the number of test examples of an evaluation; 0 for all
    eval_every: int  # the number of rounds between two evaluations

    def __post_init__(self) -> None:
        for row, tasks in self.settings.items():
            require_choice("model of settings", row.removesuffix("+LoRA"), self.models)
            for task in tasks:
                require_choice("task of settings", task, TASK_ROWS)


@dataclass(frozen=True, kw_only=True)
class SizesScale:
    """Sizes of the runs behind the scale figure."""

    models: tuple[str, ...]  # the models from small to large: sizes of ``Scale.pretrained``, or names of the hub
    rounds: int  # the rounds of every run
    batch_size: int  # the batch size B
    split: str  # how the training examples go to the clients; the authors have dirichlet-total with α = 1
    seeds: tuple[int, ...]  # the seeds of every model
    eval_every: int  # the number of rounds between two evaluations
    test_examples: int  # the number of test examples of an evaluation; 0 for all
    examples: int  # the number of training prompts whose mean loss has the Gauss-Newton matrix
    products: int  # the number of products with it, for κ at one x
    etas: Mapping[str, float] = field(default_factory=dict)  # the learning rate η of each model, where it is given
    # where ``etas`` has none, η is this share of the largest that Theorem 2 admits by the model's curvature
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Race:
    """What every method has to reach on a problem."""

    rounds: int  # the rounds that it has for it
    accuracy: float | None = None  # the test accuracy that ends the race; None where the loss does
    loss: float | None = None  # the test loss that ends it; None where the accuracy does
    every: int = 1  # the number of rounds between two evaluations

    def __post_init__(self) -> None:
        one = (self.accuracy is None) != (self.loss is None)  # just one of the two is given
        require(one, "race", "be to an accuracy or to a loss", (self.accuracy, self.loss))

    def reached(self, accuracy: float, loss: float) -> bool:
        """Whether a model of this test accuracy and loss is there; none is where they are not numbers."""
        return loss <= self.loss if self.loss is not None else accuracy >= (self.accuracy or 0.0)

    def __str__(self) -> str:
        to = f"accuracy {self.accuracy:g}" if self.loss is None else f"loss {self.loss:g}"
        return f"to {to} within {self.rounds:,} rounds"


def _problem(name: str) -> dict[str, Any]:
    # "like" names a problem whose options this one has, but for its own.
    own = dict(_DATA["board"]["problems"][name])
    return (_problem(own.pop("like")) if "like" in own else {}) | own


BOARD_PROBLEMS: dict[str, dict[str, Any]] = {name: _problem(name) for name in _DATA["board"]["problems"]}
"""The options of a run on each problem of the board."""
BOARD_COMMON: dict[str, Any] = _DATA["board"]["common"]
"""Options that every method of the board has, as far as it knows them."""
BOARD_VARIANTS: dict[str, dict[str, Any]] = _DATA["board"]["variants"]
"""Lines of the board beside the methods of the registry.

They have ``method``, other options than ``BOARD_COMMON``, and ``alone`` where one client has all data.
"""


@dataclass(frozen=True, kw_only=True)
class BoardScale:
    """Sizes of the board."""

    races: Mapping[str, Race]  # the race on each of its problems
    tuning_seeds: tuple[int, ...]  # the seeds of the runs that choose η; the table has none of them
    seeds: tuple[int, ...]  # the seeds of the table
    missed: int  # the rounds that a client misses before its rebuild is measured

    def __post_init__(self) -> None:
        for problem in self.races:
            require_choice("problem", problem, BOARD_PROBLEMS)
        held_out = not set(self.tuning_seeds) & set(self.seeds)
        require(held_out, "tuning_seeds", "be none of the table's seeds", self.tuning_seeds)


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of every part at one scale; a part that has no field here has no sizes, or those of another part."""

    name: str  # smoke, default or full
    fig2: Fig2Scale
    fig3: Fig3Scale
    projection: ProjectionScale
    memory: MemoryScale
    edge: EdgeScale
    hessian: HessianScale
    theory: TheoryScale
    llm: LanguageScale
    sizes: SizesScale
    board: BoardScale
    # the small OPT models that fine-tuning begins with, by size. Other models are the hub's.
    pretrained: Mapping[str, PretrainConfig]

    def words(self, *, named: bool = True) -> str:
        """Its name, and what it is beside the paper, which has sizes for the part or names none."""
        reduced, own = "reduced, not the paper's", "the paper's own sizes" if named else "the paper names no sizes"
        return f"{self.name} ({own if self.name == 'full' else reduced})"


_SIZED: Final[Mapping[str, type[Any]]] = {part: size for part, size in get_type_hints(Scale).items() if part in PARTS}
"""{part: the class of its sizes}."""


def _raw(part: str, scale: str) -> dict[str, Any]:
    """The sizes of a part as the files have them: the seeds stand beside the claims, where ``--list`` finds them."""
    seeds = {"seeds": PARTS[part].seeds[scale]} if "seeds" in _settings(_SIZED[part]) else {}
    return {**_DATA[part][scale], **seeds}


def _scale(name: str) -> Scale:
    own: dict[str, Any] = {part: _typed(_raw(part, name), size, part) for part, size in _SIZED.items()}
    models = {size: PretrainConfig(size=size, **given) for size, given in _DATA["pretrained"].get(name, {}).items()}
    return Scale(name=name, pretrained=models, **own)


SCALES: Final[Mapping[str, Scale]] = {name: _scale(name) for name in SCALE_NAMES}
"""Every scale by its name, from small to large."""


def changed(scale: Scale, assignments: Sequence[str]) -> tuple[Scale, dict[str, str]]:
    """The scale with other values.

    Args:
        scale: The scale.
        assignments: PART.SETTING=VALUE each, VALUE written as in ``scales.toml`` (text also without quotes); where
            SETTING is a table, PART.SETTING.NAME=VALUE is one line of it.

    Returns:
        The changed scale, and {part: what was changed} of all parts that are made at changed sizes.

    Raises:
        InputError: If there is no such setting, which then lists those that there are, or no such value.
    """
    given: dict[str, dict[str, Any]] = {}
    for text in assignments:
        # The path and the value of PART.SETTING=VALUE.
        name, _, written = text.partition("=")
        path: list[str] = []
        # TOML itself reads the dotted name: {"fig2": {"M": 0}} for fig2.M = 0, quoted parts included.
        try:
            place: Any = tomllib.loads(f"{name} = 0")
            while isinstance(place, dict):
                ((key, place),) = place.items()
                path.append(key)
        except ValueError:
            path = []
        require(len(path) > 1 and bool(written.strip()), "--set", "be PART.SETTING=VALUE, as fig2.M=50", text)
        # What is no TOML is text without quotes, as mlp.
        try:
            found = tomllib.loads(f"value = {written}")
        except tomllib.TOMLDecodeError:
            found = {"value": written.strip()}
        require(set(found) == {"value"}, "--set", "be one line", text)
        value = found["value"]
        part, setting, *inside = path
        require_choice("--set part", part, _SIZED)
        # What the files say is changed, and then read as they are: so one reader refuses what is no such value.
        raw = given.setdefault(part, _raw(part, scale.name))
        require_choice(f"--set {part} setting", setting, _settings(_SIZED[part]))
        if inside:
            raw[setting] = _with(raw.get(setting), inside, value, f"--set {part}.{setting}")
        else:
            raw[setting] = value
    new: dict[str, Any] = {part: _typed(raw, _SIZED[part], f"--set {part}") for part, raw in given.items()}
    told = {part: _differences(part, getattr(scale, part), size) for part, size in new.items()}
    users = {user: words for part, words in told.items() if words for user in _USERS.get(part, (part,))}
    return replace(scale, **new), users


def _differences(part: str, old: Any, new: Any) -> str:
    """Which settings differ, and how; InputError for a 0, a negative number or nothing where no scale has one."""
    said = []
    for name in _settings(type(new)):
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            # 0 means something in a few settings alone, as "all images": those in which some scale has it.
            known = {leaf for scale in SCALES.values() for leaf in _leaves(getattr(getattr(scale, part), name))}
            new_leaves = [leaf for leaf in _leaves(now) if leaf not in known]
            poor = [leaf for leaf in new_leaves if leaf in ((), "") or (isinstance(leaf, int | float) and leaf <= 0)]
            require(not poor, f"--set {part}.{name}", "have numbers above 0, and something in it", now)
            said.append(f"{part}.{name} = {_shown(now)} instead of {_shown(was)}")
    return ", ".join(said)
