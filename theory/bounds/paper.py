"""The theorems, the corollary and the lemmas of the paper, as printed and as mended: the rows of ``paper.toml``.

Tables of other bounds have the same form and are read here too. What several bounds share, for one set of assumptions
each, they have as [forms]; what the assumptions give as [given].
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import sympy as sp

from decomfl_lab.storage.tables import table_beside
from theory.notation.formula import parsed
from theory.notation.setting import DISTRIBUTIONS, VARIANTS
from theory.statements import left_sides
from theory.statements.statement import ONE_HESSIAN, Statement

_DATA: Final[dict[str, Any]] = table_beside(__name__, "paper.toml")
_ASSUMED: Final[dict[str, str]] = {"one_hessian": ONE_HESSIAN}
for _name, _text in _DATA.pop("assumptions").items():  # each may name those before it
    _ASSUMED[_name] = _text.format_map(_ASSUMED)
DOMINATED = _ASSUMED["dominated"]


def statements(table: dict[str, Any]) -> Iterator[Statement]:
    """Every row of a table in each of its variants: of its own, or of the form that it names with what it is given."""
    shared = table.pop("formulas", {})
    forms, given, words = (table.pop(part, {}) for part in ("forms", "given", "assumptions"))
    # What a formula may name beside the symbols, by the name of what is given. Each may name those before it.
    symbols_of: dict[str, dict[str, Any]] = {}
    for name, values in {"": {}, **given}.items():
        symbols_of[name] = {}
        with sp.evaluate(True):  # numbers are worked out
            symbols_of[name] |= _formulas(values.get("values", {}), symbols_of[name])
        symbols_of[name] |= _formulas(values.get("formulas", {}) | shared, symbols_of[name])
    for name, row in table.items():
        for variant in (each for each in VARIANTS if each in row):
            assumed = "{printed}" if variant == "stated" else "{each}"
            # The fields of a ``Statement`` as text: these, those of its form, and its own.
            fields: dict[str, Any] = {"assumptions": assumed, "distributions": DISTRIBUTIONS}
            fields |= {**forms.get(row[variant].pop("form", ""), {}), **row[variant]}
            assumption = fields.pop("given", "")
            symbols = symbols_of[assumption] | _formulas(fields.pop("formulas", {}), symbols_of[assumption])
            for part in {"terms", "eta", "mu", "rate_mu"} & fields.keys():
                fields[part] = {key: parsed(text, **symbols) for key, text in fields[part].items()}
            fields["left"] = getattr(left_sides, fields.pop("left", row.get("left", "AVERAGE")))
            if "text_of_left" in fields:
                fields["left"] = replace(fields["left"], text=fields.pop("text_of_left"))
            assumed_of = given.get(assumption, {}).get("words", "")
            assumptions = fields["assumptions"].format(of=assumed_of, **words, **_ASSUMED)
            fields["assumptions"] = assumptions.format_map(_ASSUMED)  # a word may name another one
            fields["distributions"] = tuple(fields["distributions"])
            fields["note"] = fields.get("note", "").replace("{variant}", variant)
            yield Statement(name, variant=variant, source=row.get("source", ""), **fields)


def _formulas(texts: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
    """These formulas, each in the symbols, in what is known and in those before it."""
    formulas: dict[str, Any] = {}
    for name, text in texts.items():
        formulas[name] = parsed(text, **known, **formulas)
    return formulas


with sp.evaluate(False):  # so that a formula is printed as it is written in the table
    PAPER: Final = tuple(statements(_DATA))
