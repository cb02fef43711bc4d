"""The theorems, the corollary and the lemmas of the paper, as printed and as mended: the rows of ``paper.toml``."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import sympy as sp

from decomfl_lab.storage.tables import table_beside
from theory.notation.formula import parsed
from theory.notation.setting import DISTRIBUTIONS, Variant
from theory.statements import left_sides
from theory.statements.statement import ONE_HESSIAN, Statement

# Distributions whose ∇f^μ is a mean of ∇f over shifted points: gaussian (by Stein), sphere (over its ball).
SMOOTHED: Final = ("gaussian", "sphere")
_DATA: Final[dict[str, Any]] = table_beside(__name__, "paper.toml")
_ASSUMED: Final[dict[str, str]] = {"one_hessian": ONE_HESSIAN}
for _name, _text in _DATA.pop("assumptions").items():  # each may name those before it
    _ASSUMED[_name] = _text.format_map(_ASSUMED)
EACH, DOMINATED = _ASSUMED["each"], _ASSUMED["dominated"]
_ASSUMED_OF: Final[Mapping[Variant, str]] = {"stated": "{printed}", "corrected": "{each}"}


def _statements() -> Iterator[Statement]:
    """Every row as printed, as mended, or as both."""
    shared: dict[str, sp.Expr] = {}
    for name, text in _DATA["formulas"].items():
        shared[name] = parsed(text, **shared)
    for name, row in _DATA.items():
        for variant, assumed in _ASSUMED_OF.items():
            if variant not in row:
                continue
            own = {"assumptions": assumed, "distributions": DISTRIBUTIONS, **row[variant]}
            for part in {"terms", "eta", "mu", "rate_mu"} & own.keys():
                own[part] = {key: parsed(text, **shared) for key, text in own[part].items()}
            left = getattr(left_sides, row.get("left", "AVERAGE"))
            own["left"] = replace(left, text=own.pop("text_of_left", left.text))
            own["assumptions"] = own["assumptions"].format_map(_ASSUMED)
            own["distributions"] = tuple(own["distributions"])
            yield Statement(name, variant=variant, source=row["source"], **own)


with sp.evaluate(False):  # so that a formula is printed as it is written in the table
    PAPER: Final = tuple(_statements())
