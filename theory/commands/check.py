"""``decomfl check`` and ``decomfl tightness``: the worst case of a statement, your own or one of ``theory.bounds``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require_choice
from decomfl_lab.options import REQUIRED, option
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside
from theory.notation.setting import VARIANTS

if TYPE_CHECKING:  # help needs no formula
    from theory.checks.worst_case import Instance, Tightness

_HELP = table_beside(__name__, "check.toml")
_AFRESH = "A left side that is simulated is simulated afresh at the end, so the result may differ from the progress."


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of ``decomfl check``."""

    statement: str = option(REQUIRED, _HELP["statement"], argument=True, metavar="STATEMENT")
    variant: str = option("corrected", _HELP["variant"].format(variants=", ".join(VARIANTS)), choices=VARIANTS)
    on: tuple[str, ...] = option((), _HELP["on"])
    effort: int = option(6, _HELP["effort"])
    seed: int = option(0, _HELP["seed"], ge=0)
    as_json: bool = option(False, _HELP["as_json"], flag="--json")


@command
def check(options: CheckOptions) -> None:
    """Does a bound hold? It is tried on thousands of problems.

    The first that refutes it is shown in full.

      decomfl check examples/my_bound.py:right

      decomfl check examples/my_bound.py:wrong

    Quadratics are computed exactly, with spectra, starts, noise and clients of all sorts; sums of cosines and
    piecewise quadratic losses are simulated where no closed form is known. Exit code 0 if it holds on all of them, 1 if
    it fails on one (or simulation cannot tell), 2 for bad input. That it holds on all of them is no proof.
    """
    found, named = _sought(options, first=True)
    if options.as_json:
        _dump(found, named)
    else:
        print(found.statement)
        worst = found.worst
        if found.holds:
            print(f"holds on {found.tried:,} instances; left/right is at most {worst.ratio:.4g}, on {worst.title}")
            if any(each.source == "simulation" for each in found.instances):
                print(_AFRESH)
        else:
            print("fails:" if found.holds is False else "undecided:")
            _print_instance(worst, named)
        for family, reason in found.left_out.items():
            print(f"{family} left out: {reason}")
    if not found.holds:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, kw_only=True)
class TightnessOptions(CheckOptions):
    """The options of ``decomfl tightness``: those of check, with more effort."""

    effort: int = option(20, _HELP["effort"])


@command
def tightness(options: TightnessOptions) -> None:
    """How tight is a bound? A search tries to reach it.

    It looks for the largest left side over right side, class by class of problems.

      decomfl tightness theorem-1

      decomfl tightness theorem-1 --variant stated --on quadratics

    On quadratics both sides are exact, and each of D, σ, σ_G and μ is also sought alone, the others being 0: how much
    of each term is needed. Exit code 0 whatever the ratio is; above 1 it refutes the bound.
    """
    found, named = _sought(options, first=False)
    if options.as_json:
        _dump(found, named)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("class of problems", "largest left/right", "left side", "instances tried", title=str(found.statement))
    table.title_justify = "left"
    for instance in found.instances:
        error = f" ± {instance.check.stderr / instance.check.bound:.1g}" if instance.check.stderr else ""
        refuted = " (refuted)" if instance.check.holds is False else ""
        table.add_row(instance.title, f"{instance.ratio:.4g}{error}{refuted}", instance.source, f"{instance.tried:,}")
    Console(highlight=False, markup=False).print(table)
    if any(instance.source == "simulation" for instance in found.instances):
        print(_AFRESH)
    for family, reason in found.left_out.items():
        print(f"{family} left out: {reason}")
    _print_instance(found.worst, named)


def _sought(options: CheckOptions, *, first: bool) -> tuple[Tightness, str]:
    """The worst cases, and the expression that gives the statement."""
    from decomfl_lab.plugins import made
    from decomfl_lab.progress import RunBars
    from theory.bounds import statement as bound
    from theory.checks.worst_case import FAMILIES
    from theory.checks.worst_case import tightness as worst_cases
    from theory.statements.statement import Statement

    for each in options.on:
        require_choice("--on", each, FAMILIES)
    target, variant = options.statement, options.variant
    if ":" in target:
        statement, named = made("statement", target, Statement), f"named('statement', {target!r})"
    else:
        statement = bound(target, variant)  # type: ignore[arg-type]
        named = f"theory.statement({target!r}, {variant!r})"
    with RunBars() as bars:
        worst = worst_cases(
            statement, tuple(options.on or FAMILIES), effort=options.effort, seed=options.seed, first=first,
            watch=lambda name, done, total, ratio: bars.show(name, done, total, f"left/right {ratio:.4g}"),
        )  # fmt: skip
    return worst, named


def _dump(found: Tightness, named: str) -> None:
    from dataclasses import asdict

    rows: list[dict[str, Any]] = [
        {
            "class": instance.family, "alone": instance.alone, "largest": instance.ratio,
            "ratio": instance.check.ratio, "holds": instance.check.holds,
            "left": instance.check.measured, "stderr": instance.check.stderr, "bound": instance.check.bound,
            "source": instance.source, "tried": instance.tried, "problem": repr(instance.problem),
            "setting": asdict(instance.setting), "python": instance.python(named),
        }
        for instance in found.instances
    ]  # fmt: skip
    whole = {
        "statement": found.statement.name, "says": str(found.statement), "holds": found.holds, "tried": found.tried,
        "ratio": found.worst.check.ratio, "instances": rows, "left_out": dict(found.left_out),
    }  # fmt: skip
    print_json(whole)


def _print_instance(instance: Instance, named: str) -> None:
    from theory.commands.bounds import constants_line

    small = instance.check.holds is False and instance.source == "exact"
    head = "A small instance that refutes it" if small else "The worst case that was found"
    print(f"{head}, on {instance.title} with {instance.setting.distribution} directions:")
    print(f"  {instance.check}")
    print(f"  {constants_line(instance.setting.values)}")
    if small:
        print(f"The largest left/right of the search is {instance.largest:.4g}.")
    print("Three lines of Python repeat it:")
    print(instance.python(named))
