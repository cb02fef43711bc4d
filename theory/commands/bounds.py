"""``decomfl bound`` and ``decomfl stepsize``."""

from __future__ import annotations

import inspect
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import click

import theory
from decomfl_lab.cli.command import beside, flags_of
from decomfl_lab.cli.screen import Screened
from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.options import option
from decomfl_lab.storage.json_values import print_json
from theory.notation.numbers import down, exactly
from theory.notation.setting import RARE, Setting

if TYPE_CHECKING:  # help needs no formula
    import sympy as sp

    from theory.statements.statement import Statement, StepSizes

Values = dict[str, Any]

_THEOREMS: Final = {1: "theorem-1", 2: "theorem-2"}
_SINGLE: Final = {"theorem-1": "theorem-1-single"}
"""The form of a corrected statement that is sharper where K = 1."""
_GAUSSIAN: Final = {"theorem-2": "theorem-2-gaussian"}
"""What a theorem is called for Gaussian directions, where that is another."""

_DEFAULTS: Final = {each.name: each.default for each in fields(Setting)}


@dataclass(frozen=True, kw_only=True)
class StepsizeOptions:
    """The options of ``decomfl stepsize`` beside the constants."""

    theorem: int | None = option(None, "Theorem of the paper: 1 (standard) or 2 (low effective rank).")
    named: str | None = option(
        None, "Instead of a theorem the name of a statement, as variance, or its LaTeX label.", flag="--statement"
    )
    as_json: bool = option(False, "Print one JSON object on stdout.", flag="--json")


@dataclass(frozen=True, kw_only=True)
class BoundOptions(StepsizeOptions):
    """The options of ``decomfl bound`` beside the constants."""

    a: float | None = option(None, "Norm ‖∇f‖ of the gradient at the point that a lemma speaks of. [F/X]", RARE, ge=0)
    delta: float | None = option(
        None, "Distance ‖x_{i,r}^k − x_r‖ of that point from the round's first, root mean square. [X]", RARE, ge=0
    )


def _command(name: str, own: type, run: Callable[[Any, Values], None]) -> click.Command:
    """``run(options, constants)``, with a flag for each constant: spelled as in the paper, and None where not given."""
    first, *rest = flags_of(own)
    params = [first, *flags_of(Setting, unset=True), *rest]
    return Screened(name, params=params, callback=beside(run, own), help=inspect.getdoc(run))


def _stepsize(options: StepsizeOptions, constants: Values) -> None:
    """How large may η be, and which condition of a theorem binds?

    Every condition is shown, next to what can be proved.

      decomfl stepsize --theorem 1 --d 28938 --m 10 --P 20 --K 4 --L 1

      decomfl stepsize --theorem 2 --d 28938 --kappa 20 --m 10 --P 20 --L 1

      decomfl stepsize --theorem 1 --d 28938 --L 1 --D 2 --R 1000 --sigma 0.5

    "stated" is the paper to the letter, "corrected" what is proved in docs/theory.md. The smallest η of a column is the
    largest that its statement allows. With --D and --R the rate-optimal η is shown too, the one of the smallest bound
    (σ and σ_G are 0 unless given), and the largest μ whose terms are a tenth of the others (less gains nothing).
    """
    setting, variants = _asked(options.theorem, options.named, constants)
    best = {"D", "R"} <= set(constants)
    found: dict[str, Values] = {}
    for title, form in variants.items():
        sizes = form.step_sizes(setting)
        eta = form.best_eta(setting) if best and form.with_eta else None
        found[title] = {
            "conditions": _limits(form.eta, sizes),
            "mu": _limits(form.mu, form.largest_mu(setting)),
            "rate_mu": _limits(form.rate_mu, form.largest_rate_mu(setting)),
            "largest": sizes.largest,
            "binding": sizes.binding,
            "best_eta": eta,
            "best_mu": None if eta is None else form.best_mu(setting.at(eta)),
            "best_bound": None if eta is None else sum(form.bound(setting.at(eta))),
        }
    require("eta" not in constants, "eta", "be left out, as it is what is asked for", constants.get("eta"))
    conditions = [name for each in variants.values() for name in (*each.eta, *each.mu)]
    require(
        bool(conditions),
        "statement",
        "have a condition on η (the lemmas have none)",
        next(iter(variants.values())).name,
    )
    notes = _notes(variants, setting, constants, terms=best)
    if options.as_json:
        _dump(variants, setting, {}, found, notes)
        return
    rows = []
    for words, kind in (("η by", "conditions"), ("μ by", "mu"), ("μ for the", "rate_mu")):
        for name in dict.fromkeys(name for each in found.values() for name in each[kind]):
            cells = []
            for title, form in variants.items():
                condition = found[title][kind].get(name)
                cell = ""
                if condition:
                    binds = " ← binds" if condition["binds"] else ""
                    cell = f"{_limit(condition['largest'], form)}{binds}\n{condition['formula']}"
                cells.append(cell)
            rows.append((f"{words} {name}", cells))
    rows.append(("largest η", [_limit(found[title]["largest"], form) for title, form in variants.items()]))
    if any(each["best_eta"] is not None for each in found.values()):
        rows.append(("rate-optimal η", [_limit(found[title]["best_eta"], form) for title, form in variants.items()]))
        rows.append(("rate-optimal μ", [_limit(found[title]["best_mu"], form) for title, form in variants.items()]))
        rows.append(("bound there", [_number(each["best_bound"]) for each in found.values()]))
    _print("condition", variants, rows, setting, {}, notes)


def _bound(options: BoundOptions, constants: Values) -> None:
    """What is the bound, term by term, as printed and as proved?

    Each is shown at this η and at the largest that it allows.

      decomfl bound --theorem 1

      decomfl bound --theorem 2 --d 1e9 --kappa 50 --m 10 --P 10 --L 1 --R 1000

      decomfl bound --theorem 1 --d 1000 --m 10 --P 20 --K 4 --L 1 --eta 1e-4

      decomfl bound --statement variance --d 1000 --P 20 --L 1 --a 0.3 --delta 0 --sigma 1

    "stated" is the paper to the letter, "corrected" what is proved in docs/theory.md, "sharper" and "wider" what is
    proved there with smaller constants and for larger η. Without constants the formulas are shown; without η each bound
    is at the largest that it allows. An η or μ larger than a condition allows is not refused: the number is shown, with
    a note that nothing is proved of it.
    """
    # The point that a lemma speaks of, as far as it was given.
    at = {name: getattr(options, name) for name in ("a", "delta") if getattr(options, name) is not None}
    if not constants and not options.as_json:
        # The terms and conditions of a statement's forms side by side, as formulas, and what each assumes.
        variants = _claimed(options.theorem, options.named, None)[1]
        rows = []
        for name in dict.fromkeys(name for each in variants.values() for name in each.terms):
            shown = [theory.written(each.terms[name]) if name in each.terms else "" for each in variants.values()]
            rows.append((name, shown))
        for symbol in ("eta", "mu"):
            conditions = [getattr(each, symbol) for each in variants.values()]
            if any(conditions):
                cells = ["\n".join(map(theory.written, each.values())) for each in conditions]
                only = symbol == "eta" and not any(each.with_eta for each in variants.values())
                rows.append((f"{theory.symbols.LETTERS[symbol]} {'is the least of' if only else 'at most'}", cells))
        _print(next(iter(variants.values())).left.text, variants, rows)
        return
    setting, variants = _asked(options.theorem, options.named, constants)
    for name, value in at.items():
        terms = [term for each in variants.values() for term in each.terms.values()]
        known = any(name in theory.names_in(term) for term in terms)
        require(known, name, "be left out for a statement without it", value)
    found = {title: _terms(each, setting, at) for title, each in variants.items()}
    notes = _notes(variants, setting, constants, terms=True)
    if options.as_json:
        _dump(variants, setting, at, found, notes)
        return
    rows = []
    for name in dict.fromkeys(name for each in found.values() for name in each["terms"]):
        terms = [each["terms"].get(name) for each in found.values()]
        rows.append((name, [f"{_number(term['value'])}\n{term['formula']}" if term else "" for term in terms]))
    rows.append(("bound", [_number(each["bound"]) for each in found.values()]))
    if any(each["largest"] for each in found.values()):
        rows.append(("largest η", [_limit(found[title]["largest"], of) for title, of in variants.items()]))
        if setting.eta is not None:
            rows.append(("bound there", [_number(each["bound_there"]) for each in found.values()]))
    _print(next(iter(variants.values())).left.text, variants, rows, setting, at, notes)
    for title, each in found.items():
        if each["violated"]:
            print(f"{title} claims nothing here: {'; '.join(each['violated'])}.")


stepsize = _command("stepsize", StepsizeOptions, _stepsize)
bound = _command("bound", BoundOptions, _bound)


def _claimed(theorem: int | None, named: str | None, distribution: str | None) -> tuple[str, dict[str, Statement]]:
    """The name of what is asked for, and its forms: column's title -> statement."""
    if named is None:
        require(theorem in _THEOREMS, "theorem", "be 1 or 2 unless statement is given", theorem)
        named = _THEOREMS[int(theorem or 0)]
    else:
        require(theorem is None, "theorem", "stay unset where statement is given", theorem)
    labels = {each.source: each.name for each in theory.STATEMENTS.values() if each.name not in _SINGLE.values()}
    name = require_choice("statement", labels.get(named, named), dict.fromkeys(of for of, _ in theory.STATEMENTS))
    name = _GAUSSIAN.get(name, name) if distribution == "gaussian" else name
    return name, {str(variant): each for (of, variant), each in theory.STATEMENTS.items() if of == name}


def _asked(theorem: int | None, named: str | None, constants: Values) -> tuple[Setting, dict[str, Statement]]:
    """The constants, and what is claimed of them: column's title -> statement."""
    distribution = constants.get("distribution")
    name, claimed = _claimed(theorem, named, distribution)
    formulas = (term for each in claimed.values() for term in (*each.terms.values(), *each.eta.values()))
    symbols = {symbol for each in formulas for symbol in theory.names_in(each)}
    needed = ["d", "L", *(["kappa"] if symbols & {"kappa", "rho_kappa"} else [])]
    if lacking := [symbol for symbol in needed if symbol not in constants]:
        raise InputError(f"{', '.join(lacking)} must be given, got None")
    distribution = distribution or next(iter(claimed.values())).distributions[0]
    central = any(each.central for each in claimed.values())
    setting = Setting(**(constants | {"distribution": distribution}), central=central)
    variants: dict[str, Statement] = dict(claimed)
    if setting.K == 1 and name in _SINGLE:
        variants["corrected, K = 1"] = theory.statement(_SINGLE[name])
    applying = {title: each for title, each in variants.items() if each.applies(setting)}
    if not applying:
        theory.statement(name).bound(setting)  # refuses the distribution or K
    return setting, applying


def _limits(formulas: Mapping[str, sp.Expr], sizes: StepSizes) -> dict[str, Values]:
    return {
        name: {"formula": theory.written(formulas[name]), "largest": value, "binds": name == sizes.binding}
        for name, value in sizes.conditions.items()
    }


def _terms(of: Statement, setting: Setting, at: Values) -> Values:
    """A statement's terms at the setting's η, or at the largest that it allows where none was given."""
    largest = of.step_sizes(setting).largest if of.eta else None
    if largest is not None and setting.eta is None:
        setting = setting.at(largest)
    values = of.bound(setting, **at)
    violated = []
    if of.eta:
        limits = [("η", setting.eta, of.step_sizes(setting), of.eta), ("μ", setting.mu, of.largest_mu(setting), of.mu)]
        for symbol, used, sizes, formulas in limits:
            for name, most in sizes.conditions.items():
                if used is not None and used > most * (1 + 1e-12):
                    bound = f"{down(most, 4)} = {theory.written(formulas[name])}"
                    violated.append(f"{symbol} = {used:.4g} is above {bound}, the largest that {name} allows")
        if not of.with_eta and setting.eta is not None and largest is not None and setting.eta < largest * (1 - 1e-9):
            violated.append(f"η = {setting.eta:.4g} is below {down(largest, 12)}, the only one that it is of")
    return {
        "largest": largest,
        "bound_there": None if largest is None else sum(of.bound(setting.at(largest), **at)),
        "terms": {
            name: {"formula": theory.written(of.terms[name]), "value": value}
            for name, value in zip(of.terms, values, strict=True)
        },
        "bound": sum(values),
        "violated": violated,
        "admissible": not violated,
    }


def _dump(
    variants: Mapping[str, Statement], setting: Setting, at: Values, found: Mapping[str, Values], notes: Sequence[str]
) -> None:
    """Print the bounds of all variants as JSON; ``found`` has what ``_bound`` gave, by the variants' titles."""
    first = next(iter(variants.values()))
    about = {
        "statement": first.name,
        "source": first.source,
        "left": first.left.text,
        "constants": setting.values | at,
        "notes": notes,
    }
    forms = {
        title: {**found[title], "assumptions": each.assumptions, "note": each.note} for title, each in variants.items()
    }
    print_json({**about, "distribution": setting.distribution, "variants": forms})


def _notes(variants: Mapping[str, Statement], setting: Setting, given: Values, *, terms: bool) -> list[str]:
    """What was taken for granted, in sentences; ``terms`` says whether the bounds are shown, not only conditions."""
    shown = [part for each in variants.values() for part in (each.eta, each.mu, each.terms if terms else each.rate_mu)]
    used = set[str]()
    for formula in chain.from_iterable(part.values() for part in shown):
        used |= set(theory.names_in(formula))
    notes = [
        f"{name} was not given and is taken for {_DEFAULTS[name]:g}."
        for name in ("D", "R")
        if name in used - set(given)
    ]
    if setting.M is None and not setting.replacement and "phi" in used:
        notes.append(f"M was not given and is taken for m = {setting.m}: no client is left out, so φ = 0.")
    if any(each.one_hessian for each in variants.values()):
        notes.append(
            "κ must be that of one H that dominates every ±∇²f_i(·; ξ); the effective rank of ∇²f is not enough."
        )
    return notes


def _number(value: float | None) -> str:
    return "–" if value is None else "∞" if math.isinf(value) else f"{value:.4g}"


def _limit(value: float | None, of: Statement) -> str:
    """What η or μ may be, so that it may be typed as it is printed: a bound of one η alone admits no other."""
    return down(value, 4 if of.with_eta else 12) if value is not None and math.isfinite(value) else _number(value)


def _print(
    head: str,
    variants: Mapping[str, Statement],
    rows: Sequence[tuple[str, list[str]]],
    setting: Setting | None = None,
    at: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
) -> None:
    """A statement's table, a column a form, and below it the constants, notes, what each form assumes, and moments."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False, markup=False)
    first = next(iter(variants.values()))
    title = f"{first.name}{f' ({first.source})' if first.source else ''}"
    lines = [*notes]
    if setting is not None:
        title += f", {setting.distribution} directions"
        shown = {name: value for name, value in (setting.values | dict(at)).items() if name in {*_DEFAULTS, *at, "rho"}}
        stated = theory.STATEMENTS.get((first.name, "stated"))
        if stated is not None and "stated" not in variants:
            where = f"{' or '.join(stated.distributions)} directions{' and K = 1' * stated.single_step}"
            lines.insert(0, f"stated: for {where} only")
        lines.insert(0, constants_line(shown))
    # What each form assumes and its note, once where several share it.
    titles_by_text = defaultdict[str, list[str]](list)
    for name, each in variants.items():
        for text in (each.assumptions and f"Assumes {each.assumptions}.", each.note):
            titles_by_text[text].append(name)
    lines += [f"{'; '.join(titles)}: {text}" for text, titles in titles_by_text.items() if text]
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in (head, *variants):
        table.add_column(column)
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)
    from theory.notation.formula import names_in

    parts = chain.from_iterable((of.terms, of.eta, of.mu) for of in variants.values())
    formulas = [formula for part in parts for formula in part.values()]
    used = set().union(*map(names_in, formulas))
    moments = [told for name, told in theory.symbols.MOMENTS.items() if name in used]
    for line in (*lines, *(["; ".join(moments)] if moments else [])):
        console.print(line)


def constants_line(values: Mapping[str, float]) -> str:
    """Constants of a run as they may be typed in; those that follow from others to six digits."""
    texts = {name: exactly(value) if name in _DEFAULTS else f"{value:.6g}" for name, value in values.items()}
    return ", ".join(f"{theory.symbols.LETTERS.get(name, name)} = {value}" for name, value in texts.items())
