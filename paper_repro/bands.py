"""Our curves against the authors': series by series, over their whole common length, by one rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from paper_repro.claims import Claim, Verdict
from paper_repro.measures import TOLERANCE, WITHIN, numbers

__all__ = ["RULE", "bands_table", "claim", "compared"]

RULE: Final = (
    f"a series is inside where the mean of our seeds lies between the least and the largest accuracy of the authors' "
    f"seeds, widened on both sides by {TOLERANCE:g} standard errors of an accuracy on the test images and by one "
    "standard deviation over seeds (the authors' where they have several, else ours of the series, else the mean of "
    f"ours over the other series); it has to be at {WITHIN:.0%} of the rounds that both evaluated"
)


def compared(ours: pd.DataFrame, authors: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for every series and round that both have.

    Args:
        ours: Rows with ``by``, seed, round, test_accuracy and examples (of an evaluation).
        authors: The same but for examples.
        by: Columns that name a series.

    Returns:
        Columns ``by``, round, ours, theirs (means over seeds), low, high (the authors' seeds), seeds_of_ours,
        seeds_of_theirs, margin, inside.
    """
    keys = [*by, "round"]
    frames = [_over_seeds(ours, keys).add_suffix("_ours"), _over_seeds(authors, keys).add_suffix("_theirs")]
    both = pd.concat([*frames, ours.groupby(keys).examples.min()], axis=1, join="inner").reset_index()
    common = both.groupby("round").std_ours.transform("mean")
    spread = both.std_theirs.fillna(both.std_ours).fillna(common).fillna(0.0)
    error = np.sqrt(both.mean_theirs * (1 - both.mean_theirs) / both.examples)
    margin = TOLERANCE * error + spread
    beyond = np.maximum(both.min_theirs - both.mean_ours, both.mean_ours - both.max_theirs)
    return pd.DataFrame(
        {
            **{key: both[key] for key in keys},
            "ours": both.mean_ours,
            "theirs": both.mean_theirs,
            "low": both.min_theirs,
            "high": both.max_theirs,
            "seeds_of_ours": both.count_ours,
            "seeds_of_theirs": both.count_theirs,
            "margin": margin,
            "inside": beyond <= margin,
        }
    )


def _over_seeds(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, min, max and standard deviation (NaN of one seed), where all seeds of the series are."""
    groups = rows.dropna(subset="test_accuracy").groupby(list(keys)).test_accuracy
    found = groups.agg(["mean", "min", "max", "std", "count"])
    series = [key for key in keys if key != "round"]
    return found[found["count"] == found.groupby(series)["count"].transform("max")]


def bands_table(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for each series: how much of it is inside, where it first is not, and how it ends."""
    table = []
    for name, own in found.groupby(list(by), sort=False):
        rows = own.sort_values("round")
        last, outside = rows.iloc[-1], rows[~rows.inside]
        table.append(
            {
                "series": ", ".join(map(str, name)),
                "seeds, ours": int(last.seeds_of_ours),
                "seeds, authors'": int(last.seeds_of_theirs),
                "evaluations": len(rows),
                "last round": int(last["round"]),
                "share inside": float(rows.inside.mean()),
                "first round outside": int(outside["round"].iloc[0]) if len(outside) else None,
                "last accuracy, ours": float(last.ours),
                "last accuracy, authors'": float(last.theirs),
                "largest distance of means": float((rows.ours - rows.theirs).abs().max()),
            }
        )
    return pd.DataFrame(table)


def claim(figure: str, table: pd.DataFrame, words: str, *, testable: bool, wanted: int = 1) -> Claim:
    """Whether every series of DeComFL is inside, of which ``wanted`` must be there to say so.

    ``testable`` where the runs have the authors' settings.
    """
    ours = table[table.series.str.contains("DeComFL")] if len(table) else table
    verdict: Verdict = "not tested at this scale"
    if testable and len(ours) and bool((ours["share inside"] < WITHIN).any()):
        verdict = "does not hold"
    elif testable and len(ours) >= wanted:
        verdict = "holds"
    measured: dict[str, float | None] = {}
    for row in table.to_dict("records"):
        to = f"{row['series']}, to round {row['last round']}"
        measured[f"{to}: share inside"] = row["share inside"]
        measured[f"{to}: last accuracy, ours"] = row["last accuracy, ours"]
        measured[f"{to}: last accuracy, authors'"] = row["last accuracy, authors'"]
    return Claim(
        id=f"{figure}.band",
        claim=f"With the settings of the authors' logs the curves of DeComFL run where theirs do (rule: {RULE})",
        source="the authors' logged curves",
        verdict=verdict,
        measured=numbers(measured),
        scale=words,
    )
