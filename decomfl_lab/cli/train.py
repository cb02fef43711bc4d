"""``decomfl train``: one run of any method on any model and data set."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from decomfl_lab.errors import DivergedError, require, require_choice
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.method import AUTO, Method, Option, is_auto
from decomfl_lab.methods.registry import METHODS, find_method
from decomfl_lab.runs.config import config_from_mapping, parse_schedule, read_config, run_options

if TYPE_CHECKING:
    import pandas as pd

    from decomfl_lab.federations.ray import Ray
    from decomfl_lab.runs.run import Rebuilt, Run

__all__ = ["GroupedOption", "TrainGroup", "prepared", "report", "title", "train"]


class TrainGroup(click.Group):
    """A command a method, with the options of that method alone; without a method's name it is --method's, or DeComFL.

    A run's file (--config) names its method too.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments, once they begin with a method."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = _with_method(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The methods, in the order of the register."""
        return list(METHODS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002
        """The command of a method, also of a ``module:Class``."""
        return _command(cmd_name, find_method(cmd_name))


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What click makes of the arguments; InputError for an option of another method."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.removeprefix("--").removeprefix("no-").replace("-", "_")
            foreign = any(name in {**run_options(), **each.options()} for each in METHODS.values())
            own = f"be left out for {self.name}, which has no such option (decomfl train {self.name} --help)"
            require(not foreign, name, own, error.option_name)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section a group."""
        for group in GROUPS:
            own = [each for each in self.get_params(ctx) if getattr(each, "group", "output") == group]
            if rows := [row for each in own if (row := each.get_help_record(ctx)) is not None]:
                with formatter.section(group.capitalize()):
                    formatter.write_dl(rows)


class GroupedOption(click.Option):
    """An option that belongs to a group."""

    def __init__(self, declarations: Sequence[str], group: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.group = group


GROUPS = ("method", "optimizer", "model and data", "engine", "federation", "output")


def _with_method(args: Sequence[str]) -> list[str]:
    """The arguments with the method's name first: --method's, the configuration's or DeComFL's."""
    given = click.Command(
        "train", params=[click.Option(["--method"]), click.Option(["--config"])], add_help_option=False
    )
    context = click.Context(given, ignore_unknown_options=True, allow_extra_args=True)
    found, rest, _ = given.make_parser(context).parse_args(list(args))
    name = found.get("method")
    if name is None and found.get("config") is not None:
        name = read_config(Path(found["config"])).get("method")
    kept = ["--config", found["config"]] if found.get("config") is not None else []
    return [str(name or DeComFL.name), *kept, *rest]


def _command(name: str, method: type[Method]) -> click.Command:
    """The command of one method."""
    options = run_options() | method.options()
    if method.alone:
        options = {key: each for key, each in options.items() if key not in ("clients", "sampled")}
    flags = [_flag(key, each) for key, each in options.items()]
    doc = inspect.cleandoc(method.__doc__ or "")
    summary, _, more = doc.partition("\n\n")
    formula, source, reference = more.partition("Source:")
    paragraphs = [summary, *("\b\n" + each if each.startswith(" ") else each for each in formula.split("\n\n")), USAGE]
    paragraphs += ["Source: " + reference.strip()] if source else []
    return GroupedCommand(
        name,
        params=[*flags, *OWN_FLAGS],
        callback=partial(_train, name),
        help="\n\n".join(filter(None, paragraphs)),
        short_help=summary.rstrip("."),
    )


class _OrAuto(click.ParamType[Any]):
    """A number, or auto."""

    def __init__(self, kind: type) -> None:
        self.number = click.types.convert_type(kind)
        self.name = f"{self.number.name}|{AUTO}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.ParamType``."""
        return value if is_auto(value) else self.number.convert(value, param, ctx)


def _flag(name: str, option: Option) -> GroupedOption:
    """A flag, None where it is not given, so that a file's value stands."""
    dashed = name.replace("_", "-")
    is_bool = isinstance(option.default, bool)
    shown = "none" if option.is_schedule else str(option.default)
    return GroupedOption(
        [f"--{dashed}/--no-{dashed}" if is_bool else f"--{dashed}"],
        option.group,
        type=_OrAuto(type(option.default)) if option.auto else str if option.is_schedule else type(option.default),
        default=None,
        help=f"{option.help} [default: {shown}]",
    )


USAGE = """Every run repeats bit for bit from --seed. With --out an interrupted run resumes, and a finished one can
be prolonged with a larger --rounds. Underscores in TOML keys: local_steps = 4."""
HERE = "in-process"
OWN_FLAGS = [
    GroupedOption(
        ["--device"],
        "engine",
        default="cpu",
        help="Where models and data are and losses are computed: cpu, cuda (a GPU) or auto (a GPU where there is one). "
        "Records give the same bits on each. [default: cpu]",
    ),
    GroupedOption(["--threads"], "engine", type=int, default=1, help="CPU threads of torch. [default: 1]"),
    GroupedOption(
        ["--federation"],
        "engine",
        default=HERE,
        help="Where the clients are: in-process, or ray (in actors, on this machine or, with RAY_ADDRESS, over a "
        "cluster). The run is the same to the bit. [default: in-process]",
    ),
    GroupedOption(["--workers"], "engine", type=int, help="The number of actors of federation ray. [default: 4]"),
    GroupedOption(
        ["--config"],
        "output",
        type=click.Path(path_type=Path),
        help="TOML file with any of these flags as keys (flags win over it).",
    ),
    GroupedOption(
        ["--out"],
        "output",
        type=click.Path(path_type=Path),
        help="Folder for metrics.csv, config.toml, provenance.json, a checkpoint and the log that `decomfl replay` "
        "reads; resumes. Ctrl-C saves the round under way, twice does not wait for it.",
    ),
    GroupedOption(["--json", "as_json"], "output", is_flag=True, help="Print one JSON object on stdout."),
]


def prepared(
    method: str, config: Path | None, device: str, threads: int, flags: Mapping[str, Any], federation: Ray | None = None
) -> Run:
    """The run at round 0 of a file and of the flags that were given (others are None), which win over it."""
    from decomfl_lab.devices import use_threads_
    from decomfl_lab.runs.building import dataset_of, fitted
    from decomfl_lab.runs.run import Run

    values = read_config(config) if config is not None else {}
    for name, text in flags.items():
        if text is not None:
            values[name] = parse_schedule(name, text) if name.endswith("_schedule") else text
    values["method"] = method
    run_config = config_from_mapping(values, f"config {config}" if config else "the flags")
    use_threads_(threads)
    dataset = dataset_of(run_config, device)
    run_config = run_config if "clients" in values else fitted(run_config, dataset)
    run = Run(run_config, dataset=dataset, federation=federation)
    if run.tuning is not None:
        print(run.tuning, file=sys.stderr, flush=True)
    return run


def _train(
    method: str,
    config: Path | None,
    out: Path | None,
    device: str,
    threads: int,
    federation: str,
    workers: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    from decomfl_lab.federations.ray import Ray
    from decomfl_lab.runs.progress import run_bar
    from decomfl_lab.runs.run import Rebuilt

    require_choice("federation", federation, (HERE, "ray"))
    require(federation == "ray" or workers is None, "workers", f"be left out for federation {HERE}", workers)
    by = Ray() if workers is None else Ray(workers)
    run = prepared(method, config, device, threads, flags, None if federation == HERE else by)
    plain = run.config.method.plain()
    try:
        with run_bar(title(run)) as show:
            run.train(out=out, on_round=show, on_start=_tell_start)
    except DivergedError:
        if len(run.metrics):
            print(_table(run.metrics))
        raise
    replays = plain.get("rebuild") == "replay" and plain.get("revert") == "snapshot"  # M/m rounds' worth of them
    report(run, run.verify() if replays else Rebuilt(0, 0), out, as_json=as_json)


def title(run: Run) -> str:
    """What a run is called beside its progress."""
    plain = run.config.method.plain()
    return " ".join(
        [run.config.method.name, *(f"{label}={plain[key]}" for label, key in SIZES.items() if key in plain)]
    )


def report(run: Run, rebuilt: Rebuilt, out: Path | None, *, as_json: bool, **more: str) -> None:
    """Print what came of a run; JSON has ``more`` beside it."""
    from decomfl_lab.runs.provenance import provenance

    facts, rows = provenance(run.dataset), run.metrics
    if as_json:
        result = {"config": run.config.to_dict(), "provenance": facts, "metrics": _records(rows)}
        if rebuilt.clients:
            result["rebuilt"] = {"clients": rebuilt.clients, "equal": rebuilt.equal}
        print(json.dumps(result | more))
        return
    print(_table(rows))
    if rows["round"].iloc[0] == 0:
        first, last = rows.iloc[0].test_accuracy, rows.iloc[-1].test_accuracy
        print(f"accuracy: {first:.4f} zero-shot, {last:.4f} now ({100 * (last - first):+.1f} points)")
    print(run.traffic)
    if rebuilt.clients:
        print(rebuilt)
    print(f"data: {facts['data']}; seed {run.config.seed}; code {facts['code']}")
    if out is not None:
        print(f"written to {out}", file=sys.stderr)


SIZES = {"K": "local_steps", "P": "perturbations"}


def _tell_start(row: dict[str, float]) -> None:
    """What a task's model can do before it is trained, as soon as it is known (the table has it too)."""
    plain, calibrated = row["test_accuracy"], row["calibrated_accuracy"]
    print(f"zero-shot accuracy {plain:.4f}, calibrated {calibrated:.4f}", file=sys.stderr, flush=True)


def _records(rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """The rows for JSON, which has no NaN: null where nothing was measured."""
    return rows.astype(object).where(rows.notna(), None).to_dict("records")


def _table(rows: pd.DataFrame) -> str:
    columns = ["round", "train_loss", "test_loss", "test_accuracy", "calibrated_accuracy", "wire_scalars", "drift"]
    shown = rows[[column for column in [*columns, "seconds"] if column in rows]]  # some only where they are measured
    return shown.rename(columns={"wire_scalars": "scalars/client"}).to_string(
        index=False, float_format=lambda v: f"{v:.4g}" if abs(v) < 1000 else f"{v:.0f}"
    )


train = TrainGroup(
    "train",
    help="Train one model with one method and print its evaluations.",
    epilog="\n\n\b\n".join(
        [
            "",
            "decomfl train METHOD --help     the options of a method (a method of one's own is module:Class)",
            "decomfl train                   DeComFL as the authors ran it on MNIST",
            "decomfl train --config run.toml the run of a file",
        ]
    ),
    subcommand_metavar="METHOD [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
