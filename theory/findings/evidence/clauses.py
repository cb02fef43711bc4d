"""Clauses of the abstract and Sections 1 to 5 against the paper's tables, formulas, algorithms and other sentences."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

from collections.abc import Callable
from dataclasses import replace

from theory.bounds import statement
from theory.communication import TABLE_1
from theory.findings.data import RAW
from theory.findings.decorators import refutes, supports
from theory.findings.evidence.algorithms import PROGRAMS, play
from theory.findings.evidence.prose import tighter
from theory.findings.finding import Evidence
from theory.findings.instruments import at_most, equal, exceeds, unlike
from theory.notation import symbols as s
from theory.notation.formula import names_in
from theory.notation.printed import EXAMPLES, MOST_FREQUENT, PARAMETERS, RESULTS, ROUNDS

# Sentences against formulas.

refutes("line-429.2", cause="reasons")(tighter)
_MODELS = TABLE_1["FedAvg"].uplink + TABLE_1["FedCom"].downlink
supports("line-442.5")(equal, _MODELS, _MODELS.subs(s.K, 2 * s.K), "FedAvg up and FedCom down a round, K and 2K")


@supports("line-414", "line-414.2")
def four_terms() -> Evidence:
    """Which of D, σ_G, σ and μ each term of Theorem 1 has, in their order."""
    found = [
        {*names_in(term)} & {"D", "sigma_G", "sigma", "mu"} for term in statement("theorem-1", "stated").terms.values()
    ]
    return Evidence("algebra", found == [{"D"}, {"sigma_G"}, {"sigma"}, {"mu"}], f"terms of Theorem 1 have {found}")


@refutes("line-404", cause="formula-slips")
def indices() -> Evidence:
    """A direction is made of a seed: how many indices those of Algorithm 3 have, with P directions a step."""
    return unlike(len(next(iter(play(PROGRAMS["Algorithm 3"])["seeds"]))), 2, "indices of a seed, and of z_r^k")


# Sentences against tables and other sentences.


def by_tables(find: Callable[[float, float, str], Evidence], left: float, right: float, what: str) -> Evidence:
    """A comparison of numbers that the paper's tables have."""
    return replace(find(left, right, what), instrument="table")


# Cells 0 to 3 of a row are FedAvg's, MeZO's, FedZO's and DeComFL's.
_CELLS = [cells for rows in RESULTS.values() for cells in rows.values()]
_BEHIND = [cells[0].accuracy - cells[3].accuracy for cells in _CELLS]
_SAVED = [1e6 * (cells[column].cost or 0) / (cells[3].cost or 1) for cells in _CELLS for column in (0, 2)]
supports("line-138.2")(by_tables, at_most, 1e9, PARAMETERS["OPT-1.3B"], "parameters of the larger model of Table 2")
refutes("line-186.3", "line-573", cause="loose-words")(
    by_tables, exceeds, sum(gap > 1 for gap in _BEHIND), 6, "of 12 cells FedAvg leads DeComFL by more than a point in"
)
supports("line-512.2")(
    by_tables, at_most, 1e5, min(_SAVED), "least ratio of the costs of FedAvg and FedZO to DeComFL's"
)
refutes("line-574.3", cause="two-sentences")(
    by_tables, exceeds, ROUNDS["OPT-1.3B"]["SST-2"], 1250, "rounds of SST-2 in the settings, to convergence in C.3.1"
)
refutes("line-574.4", cause="loose-words")(
    by_tables, exceeds, 1e9, PARAMETERS["OPT-125M"], "a billion, parameters of the smaller model"
)
for _name in ("WSC", "BoolQ"):
    refutes("line-465.2", cause="loose-words")(
        by_tables,
        exceeds,
        100 * MOST_FREQUENT[_name] / EXAMPLES[_name],
        RESULTS["OPT-125M"][_name][3].accuracy,
        f"per cent of the most frequent answer of {_name}, accuracy of DeComFL",
    )


def absent(word: str, section: str) -> Evidence:
    """What a section asserts is quoted by entries: none of them has the word."""
    quotes = [raw["quote"] for raw in RAW if raw["place"].endswith(section) and "quote" in raw]
    with_word = [quote for quote in quotes if word in quote]
    return Evidence(
        "table", bool(quotes) and not with_word, f"{len(quotes)} quotations of {section}; “{word}” in {with_word}"
    )


@refutes("line-570", cause="two-sentences")
def not_of_superglue() -> Evidence:
    """Tasks of Table 2 that SuperGLUE does not have."""
    others = set(EXAMPLES) - {"BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WIC", "WSC"}
    return Evidence("table", bool(others), f"not among the eight tasks of SuperGLUE: {', '.join(sorted(others))}")
