"""``decomfl train``: one run of any method on any model and data set."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from decomfl_lab.cli.command import beside, flags, flags_of
from decomfl_lab.cli.screen import Screened
from decomfl_lab.errors import DivergedError, InputError, require, require_choice
from decomfl_lab.federations.carrier import FEDERATIONS, Elsewhere
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.registry import METHODS, find_method
from decomfl_lab.options import MOST_THREADS, TRUST_CODE, WORDS, option
from decomfl_lab.plugins import code_in, is_own, require_trusted
from decomfl_lab.runs.configuration import FLAGS, config_from_mapping, read_config, run_options
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, further
from decomfl_lab.runs.tuning import AUTO, CHOSEN, tuned, without_auto
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from decomfl_lab.runs.messages import Rebuilt
    from decomfl_lab.runs.run import Run

_TEXTS = table_beside(__name__, "train.toml")
FIRST: dict[str, str] = _TEXTS["first"]
"""The options of a command line that names nothing to train: about 8 seconds of a CPU."""
_MEANT = f"{__name__}.meant"


class TrainGroup(Screened, click.Group):
    """A command a method, with the options of that method alone; without a method's name it is --method's, or DeComFL.

    A run's file (--config) names its method too.
    """

    def __init__(
        self,
        name: str,
        kind: type[Any],
        run: Callable[[str, Any, dict[str, Any]], None],
        *,
        methods: Collection[str] = METHODS,
        first: Mapping[str, str] = FIRST,
        **attributes: Any,
    ) -> None:
        """A group of these methods.

        Args:
            name: The group's name.
            kind: Its options beside those of a run.
            run: What a command does, ``run(method, options, flags)`` with the flags of a run that were given.
            methods: The methods.
            first: See ``FIRST``.
            attributes: Those of a ``click.Group``.
        """
        super().__init__(name, **attributes)
        self._own, self._run, self._methods, self.first = kind, run, methods, first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments, once they begin with a method."""
        if not args and ctx.resilient_parsing:  # what follows may be a method
            return super().parse_args(ctx, args)
        if not args or (args[0].startswith("-") and args[0] not in (*ctx.help_option_names, "--help-all")):
            # The arguments with the method's name first, --method's, the file's or DeComFL's; whether they name what to
            # train.
            asked = [click.Option([f"--{name}"]) for name in ("method", "config", "data", "task", "model")]
            command = click.Command("train", params=[*asked], add_help_option=False)
            context = click.Context(
                command, ignore_unknown_options=True, allow_extra_args=True, resilient_parsing=ctx.resilient_parsing
            )
            values_, rest, _ = command.make_parser(context).parse_args(list(args))
            name = values_.pop("method", None)
            known = bool(name is not None or values_)
            if name is None and values_.get("config") is not None:
                values = read_config(Path(values_["config"]))
                if "method" in code_in(values):
                    flags = {word[2:].partition("=")[0] for word in args if word.startswith("--")}
                    require_trusted(values, f"config {values_['config']}", "trust-code" in flags, flags)
                name = values.get("method")
            words = [word for option, value in values_.items() for word in (f"--{option}", value)]
            args, named = [str(name or DeComFL.name), *words, *rest], known
            if not named and self.first:
                flags_given = {word.partition("=")[0] for word in args}
                preset = list[str]()
                for flag, value in self.first.items():
                    if flag not in flags_given:
                        preset += [flag, value]
                args = [args[0], *preset, *args[1:]]
                ctx.meta[_MEANT] = f"{ctx.command_path} {shlex.join(args)}"
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The methods, in the order of the register."""
        return list(self._methods)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002
        """The command of a method, also of a ``module:Class``, with the flags of a run."""
        method = find_method(cmd_name)
        options = run_options() | method.options()
        if method.alone:
            options = {key: option for key, option in options.items() if key not in ("clients", "sampled", "joined")}
        common = [name for name, option in method.options().items() if not option.rare]
        usual = {*USUAL, *(name for name in common if name not in DeComFL.options())}
        grouped = {key: option.group or GROUPS[0] for key, option in options.items()}
        ordered = sorted(options, key=lambda key: [*GROUPS, grouped[key]].index(grouped[key]))
        listed = [(key, replace(options[key], group="" if key in usual else grouped[key])) for key in ordered]
        # A flag is None where it is not given, so that a file's value stands; what can be searched may be auto.
        params = flags(listed, unset=True)
        for param in params if method.tunable else ():
            if param.name in CHOSEN:
                param.type = _OrAuto(options[param.name].kind)
        summary, _, more = inspect.cleandoc(method.__doc__ or "").partition("\n\n")
        formula, source, reference = more.partition("Source:")
        paragraphs = [summary, formula.rstrip(), _TEXTS["usage"], source and "Source: " + reference.strip()]
        return MethodCommand(
            cmd_name,
            params=[*params, *flags_of(self._own)],
            callback=beside(partial(self._run, cmd_name), self._own),
            help="\n\n".join(filter(None, paragraphs)),
            short_help=summary.rstrip("."),
        )


class MethodCommand(Screened):
    """The command of a method."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments; InputError for an option of another method."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            typed = error.option_name.lstrip("-").removeprefix("no-")
            name = WORDS.get(typed, typed).replace("-", "_")
            others = {
                **run_options(),
                **{key: option for kind in METHODS.values() for key, option in kind.options().items()},
            }
            foreign = name in others and all(name != param.name for param in self.params)
            rule = f"be left out for {self.name}, which has no such option (decomfl train {self.name} --help)"
            require(not foreign, name, rule, error.option_name)
            raise


GROUPS = ("method", "optimizer", "model and data", "engine", "output")
"""The groups of a run's options, in the order of --help-all."""
USUAL = (
    *("data", "model", "clients", "sampled", "rounds", "local_steps", "perturbations", "batch_size", "lr", "seed"),
    *("server_optimizer", "server_lr"),
)
"""The options that --help has; besides these it has those that a method does not share with DeComFL, but rare ones."""


class _OrAuto(click.ParamType[Any]):
    """A number, or auto."""

    def __init__(self, kind: type) -> None:
        self.number = click.types.convert_type(kind)
        self.name = f"{self.number.name}|{AUTO}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == AUTO else self.number.convert(value, param, ctx)


HERE = "in-process"
_HELP = table_beside(__name__, "options.toml")["train"]


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a run is computed and kept."""

    device: str = option("cpu", _HELP["device"])
    threads: int = option(1, "CPU threads of torch.", "engine", ge=1, le=MOST_THREADS)
    config: Path | None = option(None, _HELP["config"])
    out: Path | None = option(None, _HELP["out"])
    trust_code: bool = option(False, TRUST_CODE)
    as_json: bool = option(False, "Print one JSON object on stdout.", flag="--json")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of ``decomfl train`` beside those of a run and its method."""

    place: RunPlace
    federation: str = option(HERE, _HELP["federation"], "engine")
    workers: int | None = option(None, "The number of actors of federation ray. [default: 4]", "engine")
    log_to: tuple[str, ...] = option((), _HELP["log_to"], "output")


_ONLY_WITH = {
    "alpha": ("split", ("dirichlet", "dirichlet-total")),
    "lora_rank": ("tune", ("lora",)),
    "lora_alpha": ("tune", ("lora",)),
}
"""Flags that would be given in vain without one of these values of another option."""


def prepared(
    method: str,
    place: RunPlace,
    flags: Mapping[str, Any],
    federation: Elsewhere | None = None,
    *,
    follows: bool = False,
) -> Run:
    """The run at round 0 of a file and of the flags that were given, which win over it.

    Clients that a run in ``place.out`` does not have join in its next round; see ``runs.folder`` for ``follows``.
    """
    from decomfl_lab.devices import use_threads_
    from decomfl_lab.runs.folder import joining
    from decomfl_lab.runs.preparation import Materials, Prepared, tried
    from decomfl_lab.runs.run import Run

    values = read_config(place.config) if place.config is not None else {}
    options = run_options() | find_method(method).options()
    for name, value in flags.items():
        values[name] = value
        if not options[name].is_schedule or (options[name].own and is_own(value)):
            continue
        # {round: value} of "500=0.1,1000=0.05"
        rule = "be ROUND=VALUE pieces joined by commas" + " or file.py:name" * bool(options[name].own)
        values[name] = {}
        for piece in value.split(",") if value.strip() else ():
            try:
                r, rate = piece.split("=")
                values[name][int(r)] = options[name].of(rate)
            except ValueError:
                raise InputError(f"{name} must {rule}, got {piece!r}") from None
    values["method"] = method
    values, wanted = without_auto(values)
    origin = f"config {place.config}" if place.config else FLAGS
    trusted = place.trust_code or [method, *flags.values()]
    # The file may be the one that the run in the folder left, perhaps an earlier version's, which said less.
    lenient = False
    if place.config is not None and place.out is not None:
        saved = any((place.out / name).exists() for name in (LOG_FILE, CHECKPOINT_FILE))
        lenient = saved and os.path.realpath(place.config) == os.path.realpath(place.out / CONFIG_FILE)
    run_config = config_from_mapping(values, origin, lenient=lenient, trust_code=trusted)
    for name, (other, those) in _ONLY_WITH.items():
        value_there = getattr(run_config, other)
        rule = f"be left out with {other} {value_there}, which has no use for it (--{other} {' or '.join(those)})"
        require(flags.get(name) is None or value_there in those, name, rule, flags.get(name))
    use_threads_(place.threads)
    dataset = Materials(run_config).dataset(place.device)
    if "clients" not in values and not run_config.method.alone:
        # As many clients as the data bring, where they come as clients' own.
        M = run_config.clients if dataset.parts is None else len(dataset.parts)
        run_config = run_config.but(clients=M, sampled=values.get("sampled", min(run_config.sampled, M)))
    if place.out is not None:
        run_config = joining(run_config, dataset, place.out, follows=follows)
    start, tuning = tuned(tried(Prepared.of(run_config, dataset)), wanted)
    if tuning is not None:
        print(tuning, file=sys.stderr, flush=True)
    return Run(start, federation=federation, tuning=tuning)


def _train(method: str, options: TrainOptions, flags: dict[str, Any]) -> None:
    from decomfl_lab.progress import run_bar
    from decomfl_lab.runs.hooks import logger_of
    from decomfl_lab.runs.messages import Rebuilt

    out = options.place.out
    hooks = [logger_of(text) for text in options.log_to]
    # Where the clients are: in this process, or in what an entry point of the name makes.
    entries = {entry.name: entry for entry in entry_points(group=FEDERATIONS)}
    name = require_choice("federation", options.federation, (HERE, *entries))
    workers, by = options.workers, None
    require(name != HERE or workers is None, "workers", f"be left out for federation {HERE}", workers)
    if name != HERE:
        kind = entries[name].load()
        by = kind() if workers is None else kind(workers=workers)
    run = prepared(method, options.place, flags, by)
    if (first := click.get_current_context().meta.get(_MEANT)) is not None:
        print(f"this is: {first}\n(the authors' run on MNIST is: decomfl train decomfl)", file=sys.stderr, flush=True)

    def tell_start(row: dict[str, float]) -> None:
        """What a task's model can do before it is trained, as soon as it is known (the table has it too)."""
        plain, calibrated = row["test_accuracy"], row["calibrated_accuracy"]
        print(f"zero-shot accuracy {plain:.4f}, calibrated {calibrated:.4f}", file=sys.stderr, flush=True)

    try:
        with run_bar(title(run)) as show:
            run.train(out=out, on_round=show, on_start=tell_start, hooks=hooks)
    except DivergedError:
        if len(run.metrics):
            print(_table(run))
        raise
    # Where clients replay anyway, a replay for each costs as much as M/m rounds did.
    rebuilt = run.verify() if run.config.method.replays else Rebuilt(0, 0)
    report(run, rebuilt, out, as_json=options.place.as_json)


def title(run: Run) -> str:
    """What a run is called beside its progress."""
    method = run.config.method
    return " ".join([method.name, *(f"{symbol}={size}" for symbol, size in method.sizes.items())])


def report(run: Run, rebuilt: Rebuilt, out: Path | None, *, as_json: bool, **more: str) -> None:
    """Print what came of a run; JSON has ``more`` beside it."""
    from decomfl_lab.storage.provenance import provenance

    facts, rows = provenance(run.dataset), run.metrics
    if as_json:
        config, table = run.config.to_dict(), rows.to_dict("records")
        result: dict[str, Any] = {"config": config, "provenance": facts, "metrics": table, "remark": run.remark}
        if rebuilt.clients:
            result["rebuilt"] = {"clients": rebuilt.clients, "equal": rebuilt.equal}
        print_json(result | more)
        return
    print(_table(run))
    if rows["round"].iloc[0] == 0:
        first, last = rows.iloc[0].test_accuracy, rows.iloc[-1].test_accuracy
        print(f"accuracy: {first:.4f} zero-shot, {last:.4f} now ({100 * (last - first):+.1f} points)")
    print(run.traffic)
    if rebuilt.clients:
        print(rebuilt)
    if run.remark:
        print(run.remark)
    whole = f"; {run.whole}" if run.whole else ""
    print(f"data: {facts['data']}{whole}; seed {run.config.seed}; code {facts['code']}")
    if out is None:
        notice = "nothing was kept: with --out runs/first the run is kept, for decomfl plot, kappa, replay and export"
        print(notice, file=sys.stderr)
        return
    # What the run can be looked at with.
    code = code_in(run.config.to_dict())
    trusting = " --trust-code" * bool(code)
    commands = {
        f"plot {out}": "its curves, beside those of other runs",
        f"kappa {out}{trusting}": "the effective rank of its curvature",
    }
    if (out / LOG_FILE).exists():
        # A replay needs the model alone; of the data it needs the statistics of frozen BatchNorms.
        needed = {"model", "method"} | ({"data"} if run.config.batchnorm == "frozen" else set())
        replaying = " --trust-code" * bool(needed & code.keys())
        commands[f"replay {out}{replaying}"] = "the model again, from the log of scalars alone"
    width = max(len(f"decomfl {words}") for words in commands) + 2
    lines = [f"  {f'decomfl {words}':<{width}} {why}" for words, why in commands.items()]
    print("\n".join([f"written to {out}; look at it by", *lines]), file=sys.stderr)


def _table(run: Run) -> str:
    rows = run.metrics
    columns = ["round", "train_loss", "test_loss", "test_accuracy", *further(run.config), "wire_scalars", "drift"]
    shown = rows[[column for column in [*columns, "seconds"] if column in rows]]  # some only where they are measured
    return shown.rename(columns={"wire_scalars": "scalars/client"}).to_string(
        index=False, float_format=lambda v: f"{v:.4g}" if abs(v) < 1000 else f"{v:.0f}"
    )


train = TrainGroup(
    "train",
    TrainOptions,
    _train,
    help="Train one model with one method and print its evaluations.",
    epilog=_TEXTS["epilog"],
    subcommand_metavar="METHOD [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
