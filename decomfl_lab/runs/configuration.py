"""The configuration of a run: the whole truth, checked when it is made."""

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decomfl_lab.datasets import DATA_NAMES
from decomfl_lab.datasets.splits import SPLITS
from decomfl_lab.engines.registry import ENGINES
from decomfl_lab.errors import InputError, require, require_choice, require_int, require_possible
from decomfl_lab.language.tasks import TASKS
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.expected_traffic import Cohort
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.registry import METHODS, find_method, name_of
from decomfl_lab.methods.scalars import Perturbing
from decomfl_lab.models import MODEL_NAMES
from decomfl_lab.noise.draws import DRAWS, LIBRARIES, STREAM
from decomfl_lab.noise.spec import NO_LOW_RANK
from decomfl_lab.options import Option, option, own_options, require_option, require_options
from decomfl_lab.plugins import OWN, Trust, code_in, is_own, require_trusted, targets_of
from decomfl_lab.protocol.aggregation import Weighting
from decomfl_lab.records.schedules import Schedule, growing
from decomfl_lab.storage.files import read_file
from decomfl_lab.storage.tables import table_beside

CROSS_ENTROPY = "cross-entropy"
OWN_LOSS = "model"
"""The loss that a module computes of its own, from targets that it is given as ``labels``."""
LOCAL_GROUPS = ("engine", "output")
"""The groups of options that server and clients may have each their own of."""
TREATMENTS = ("batch", "frozen")
"""What becomes of BatchNorm (``objectives.normalisation``)."""
FLAGS = "the flags"
"""The origin of values that no file has: an error names them alone."""
PARTS = ("aggregation", "attack", "lr_schedule")
"""The options of methods in whose place a user's own function may stand."""
OBJECTS = ("model", "data", "loss", "metrics", *PARTS)
"""The options that name what can be given as an object too."""
TUNINGS = ("full", "lora", "norms")
"""What can be trained of a task's model: all of it, or what ``language.adapters`` leaves trainable."""
_HELP = table_beside(__name__, "options.toml")
_RANK_ONE = {"rank": 1}
"""An option of version 0.1, with the value that it had where directions were not of low rank."""


@dataclass(frozen=True, init=False)
class TrainConfig:
    """One training run: a method with its options, and everything that is not the method's.

    Defaults are the authors' MNIST settings as their logs have them ("as-plotted"). Options of the method can be given
    and read beside those of the run: ``TrainConfig(method="fedavg", local_steps=4).local_steps``.
    """

    method: Method = field(default_factory=DeComFL)
    model: str = option("cnn-mnist", _HELP["model"].format(models=", ".join(MODEL_NAMES)), "model and data")
    loss: str = option(CROSS_ENTROPY, _HELP["loss"], "model and data")
    batchnorm: str = option("batch", _HELP["batchnorm"], "model and data", choices=TREATMENTS)
    calibration_examples: int = option(500, _HELP["calibration_examples"], "model and data", ge=2)
    data: str = option("mnist", _HELP["data"].format(data=", ".join(DATA_NAMES)), "model and data")
    task: str = option("", _HELP["task"].format(tasks=", ".join(TASKS)), "model and data")
    task_data: str = option("", _HELP["task_data"], "model and data")
    max_length: int = option(0, _HELP["max_length"], "model and data", ge=0)
    cb_two_way: bool = option(False, _HELP["cb_two_way"], "model and data")
    tune: str = option("full", _HELP["tune"], "model and data", choices=TUNINGS)
    lora_rank: int = option(8, _HELP["lora_rank"], "model and data", ge=1)
    lora_alpha: float = option(16.0, _HELP["lora_alpha"], "model and data", gt=0)
    redraw: int = option(1, _HELP["redraw"], "model and data", rare=True, ge=1)
    split: str = option("iid", _HELP["split"], "model and data", choices=SPLITS)
    alpha: float = option(1.0, _HELP["alpha"], "model and data", gt=0)
    batch_size: int = option(256, _HELP["batch_size"], "model and data", symbol="B", ge=1)
    clients: int = option(100, _HELP["clients"], symbol="M", ge=1)
    sampled: int = option(10, _HELP["sampled"], symbol="m", ge=1)
    joined: Mapping[int, int] = option({}, _HELP["joined"], rare=True, of=int, ge=1)
    rounds: int = option(100, _HELP["rounds"], symbol="R", ge=1)
    seed: int = option(0, _HELP["seed"], ge=0, le=2**64 - 1)
    draws: str = option(STREAM, _HELP["draws"], "model and data", earlier=LIBRARIES, choices=DRAWS)
    compute: str = option("float32", _HELP["compute"], "engine", choices=("float32", "tf32", "bfloat16"))
    engine: str = option("auto", _HELP["engine"], "engine", choices=ENGINES)
    trust: bool = option(False, _HELP["trust"], "engine")
    eval_every: int = option(10, _HELP["eval_every"], "output", ge=1)
    eval_first: int = option(0, _HELP["eval_first"], "output", rare=True, ge=0)
    log_start: bool = option(False, _HELP["log_start"], "output", rare=True)
    test_examples: int = option(0, _HELP["test_examples"], "output", ge=0)
    metrics: str = option("", _HELP["metrics"], "output", rare=True)

    def __init__(self, method: Method | str = DeComFL.name, **values: Any) -> None:
        """A run.

        Args:
            method: A method, or its name.
            values: Options of the run and, instead of the method's own, of the method.

        Raises:
            InputError: If a value breaks a rule, or is of an option that neither the run nor this method has.
        """
        require(isinstance(method, Method | str), "method", "be a method, as lab.DeComFL(), or its name", method)
        method_ = method if isinstance(method, Method) else find_method(method)()
        run_fields = run_options()
        if method_.alone:
            values = {"clients": 1, "sampled": 1, **values}
        of_method = {name: value for name, value in values.items() if name not in run_fields}
        for name in of_method.keys() - {part.name for part in dataclasses.fields(method_)}:
            require_option(f"option of {method_.name}", name, [*method_.options(), *run_fields])
        object.__setattr__(self, "method", method_.but(of_method) if of_method else method_)
        for name, declared in run_fields.items():
            default = dict(declared.default) if declared.is_schedule else declared.default
            object.__setattr__(self, name, values.get(name, default))
        if "sampled" not in values and isinstance(self.clients, int):  # of fewer than are usual, all
            object.__setattr__(self, "sampled", min(self.sampled, max(self.clients, 1)))
        self._check()

    def __getattr__(self, name: str) -> Any:
        """An option of the method."""
        method = self.__dict__.get("method")
        if method is None or name.startswith("_"):
            raise AttributeError(name)
        if (plain := method.plain()) and name in plain:
            return plain[name]
        raise AttributeError(f"{name} is no option of a run, nor of its method {method.name}")

    def _check(self) -> None:
        require_options(self)
        drawn = self.redraw == 1 or self.data == OWN or is_own(self.data)
        require(drawn, "redraw", "be 1 but for data of your own, as nothing is drawn of others", self.redraw)
        require_int(f"sampled clients m (of M={self.clients})", self.sampled, 1, self.clients)
        later = sum(self.joined.values())
        least = f"leave at least 1 of the {self.clients} clients in round 0"
        require(later < self.clients, "joined", least, dict(self.joined))
        require_int("eval_first", self.eval_first, 0, self.eval_every)
        for name, target in self.measures.items():
            rule = "have names that are words, and none of the run's own (accuracy, loss)"
            require(name.isidentifier() and name not in ("accuracy", "loss"), "metrics", rule, name)
            known = is_own(target) or target.startswith(f"{OWN} ")
            require(known, f"metrics {name}", "be module:function", target)
        if self.task:
            require_choice("task", self.task, TASKS)
            require(self.data == "mnist", "data", "be left alone with a task, which has its own", self.data)
        require(bool(self.task) or not self.task_data, "task_data", "be empty without a task", self.task_data)
        require(bool(self.task) or not self.max_length, "max_length", "be 0 without a task", self.max_length)
        require(self.task == "cb" or not self.cb_two_way, "cb_two_way", "be off but for task cb", self.cb_two_way)
        require(bool(self.task) or self.tune == "full", "tune", "be full without a task", self.tune)
        known = self.loss in (CROSS_ENTROPY, OWN_LOSS) or is_own(self.loss) or self.loss.startswith(OWN)
        require(known, "loss", "be cross-entropy, model or module:function", self.loss)
        if self.compute == "bfloat16":
            require(bool(self.task), "compute", "be float32 without a task", self.compute)
        self.method.require_compute(self.compute)
        lonely = not self.method.alone or self.clients == self.sampled == 1
        rule = f"be 1 for {self.method.name}, which is one agent"
        require(lonely, "clients M and sampled m", rule, (self.clients, self.sampled))
        sizes = (self.rounds, self.sampled, *({"K": 1, "P": 1} | self.method.sizes).values())
        # No loss, with the round around it, takes less than 10⁵ operations.
        named = "rounds R, sampled m, local_steps K and perturbations P"
        require_possible(named, sizes, operations=1e5 * math.prod(sizes))

    def evaluates(self, rounds: int) -> bool:
        """Whether the held-out data are evaluated after so many rounds; at the end they are anyway."""
        return rounds == 0 or (rounds - (self.eval_first or self.eval_every)) % self.eval_every == 0

    @property
    def measures(self) -> dict[str, str]:
        """What else is measured on the held-out examples, {name: module:function}."""
        return targets_of(self.metrics)

    @property
    def present(self) -> Schedule[int]:
        """M_r: how many clients there are in round r."""
        return growing(self.clients, self.joined)

    def of_first(self, M: int) -> "TrainConfig":
        """The run as it was when it had M clients: without those that joined later.

        InputError if it never had M clients.
        """
        present = self.present
        sizes = [present.initial, *present.changes.values()]
        require(M in sizes, "clients M of the run at some time", f"be one of {sizes}", M)
        joined = {r: number for r, number in self.joined.items() if present(r) <= M}
        return self.but(clients=M, sampled=min(self.sampled, M), joined=joined)

    @property
    def cohort(self) -> Cohort:
        """How many take part, and how often; InputError where clients join, for which there are no closed forms."""
        require(not self.joined, "joined", "be left out for a closed form", self.joined)
        return Cohort(self.rounds, self.clients, self.sampled)

    def but(self, method: Method | str | None = None, **values: Any) -> "TrainConfig":
        """The same run with these values; another method keeps what it has in common with this one."""
        method = self.method if method is None else method
        if isinstance(method, str):
            kind, plain = find_method(method), self.method.plain()
            method = kind.of({name: plain[name] for name in kind.options() if name in plain})
        if method.alone:
            values = {"clients": 1, "sampled": 1, "joined": {}, **values}
        return TrainConfig(method, **{name: getattr(self, name) for name in run_options()} | values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, schedules with text keys (as TOML and JSON want them); without data where there is a task.

        They are hashed (``fingerprint``, ``identity``), so a rare option is left out at its default, as ever.
        """
        values = {name: getattr(self, name) for name in run_options() if name != "data" or not self.task}
        values |= self.method.plain()
        for name, declared in (run_options() | self.method.options()).items():
            if declared.rare and values[name] == declared.default:
                del values[name]
        plain = {"method": name_of(self.method), **values}
        schedules = {name: value for name, value in plain.items() if isinstance(value, Mapping)}
        return plain | {name: {str(r): v for r, v in sorted(rates.items())} for name, rates in schedules.items()}

    def to_toml(self) -> str:
        """The configuration as TOML that ``read_config`` reads back."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    def fingerprint(self, *, data: str, code: str) -> str:
        """Hex key of a result: BLAKE2b of configuration (seed included), data digest and code version."""
        message = json.dumps([self.to_dict(), data, code], sort_keys=True)
        return hashlib.blake2b(message.encode(), digest_size=8).hexdigest()

    def identity(self, x: str) -> bytes:
        """The run's identity, 16 bytes: all that server and clients must agree upon, with the digest of x_0.

        Where the data are, how losses are computed, how long the run is and what is printed are not part of it; nor is
        who joined later, so that clients that were there before go on.
        """
        first = self.of_first(self.present.initial)
        known = run_options() | self.method.options()
        local = {name for name, declared in known.items() if declared.group in LOCAL_GROUPS}
        local |= {"rounds", "data", "task_data"}
        agreed = {name: value for name, value in first.to_dict().items() if name not in local}
        # As in runs that were begun before there was another.
        if agreed.get("weighting") == Weighting.CLIENTS:
            del agreed["weighting"]
        if agreed["draws"] == LIBRARIES:
            del agreed["draws"]
        # As in runs of version 0.1, whose methods along random directions had this option.
        if isinstance(self.method, Perturbing):
            agreed = _RANK_ONE | agreed
        return hashlib.blake2b(json.dumps([agreed, x], sort_keys=True).encode(), digest_size=16).digest()


def run_options() -> dict[str, Option]:
    """The options of a run that no method has."""
    return own_options(TrainConfig)


def config_from_mapping(
    values: Mapping[str, Any],
    origin: str,
    *,
    lenient: bool = False,
    trust_code: Trust = False,
    unused: Collection[str] = (),
    kind: type[Method] | None = None,
) -> TrainConfig:
    """A TrainConfig from plain values; InputError naming an unknown key or a value of a wrong type.

    This is where files and peers are asked for what they name: what a configuration names may be imported.

    Args:
        values: {option: value}; the option ``method`` has the method's name.
        origin: The name of the values in an error.
        lenient: Whether they may be of a run of an earlier version: every option of another method is then ignored,
            otherwise only those that have their default are; and what such runs did not say is as they did it.
        trust_code: Whether they may name code to import, or which (``plugins.require_trusted``).
        unused: The options of which nothing will be imported, so that they may name any code.
        kind: The method where it is known, and nothing will be imported; None for the one that is named.
    """
    if kind is None:
        name = values.get("method", DeComFL.name)
        require(isinstance(name, str), f"method in {origin}", "be a name", name)
        require_trusted(values, origin, trust_code, unused)
        kind = find_method(name)
    known = run_options() | kind.options()
    others = [kind_.options() for kind_ in METHODS.values()]
    clean: dict[str, Any] = {"method": kind.of({})}
    for key, value in values.items():
        if key == "method":
            continue
        if key in _RANK_ONE and key not in known:
            one = type(value) is int and value == _RANK_ONE[key]
            require(one, f"{key} in {origin}", f"be 1, {NO_LOW_RANK}", value)
        elif key not in known:
            defaults = [options[key].default for options in others if key in options]
            require_option(f"key in {origin}", key, ["method", *known, *([key] if defaults else [])])
            rule = f"be left out for {values.get('method', DeComFL.name)}, which has no such option"
            require(lenient or value in defaults, f"{key} in {origin}", rule, value)
        else:
            place = known[key].title(key) if origin == FLAGS else f"{key} in {origin}"
            clean[key] = known[key].read(place, value)
    if lenient:
        clean = {key: options.earlier for key, options in known.items() if options.earlier is not None} | clean
    return TrainConfig(**clean)


def config_like(config: TrainConfig, values: Mapping[str, Any], origin: str) -> TrainConfig:
    """What a folder says of the run ``config``, to compare them: no code is imported.

    Raises:
        InputError: As ``config_from_mapping``; or if the folder names code that is not the run's own method.
    """
    ours = name_of(config.method)
    theirs = values.get("method", DeComFL.name)
    if theirs != ours:
        require("method" not in code_in(values), f"method in {origin}", f"be {ours}", theirs)
        return config_from_mapping(values, origin, lenient=True, unused=OBJECTS)
    return config_from_mapping(values, origin, lenient=True, kind=type(config.method))


def read_config(path: Path, *, plain: bool = False) -> dict[str, Any]:
    """The values in a TOML file; InputError if it cannot be read or parsed.

    It must be a ``plain`` file in a folder that is looked at: nobody has said that others have an end.
    """
    content = read_file("config", path, plain=plain)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise InputError(f"config must be valid TOML, got {path} ({error})") from None
    except RecursionError:
        raise InputError(f"config must be TOML of a few levels, got {path} with hundreds") from None
