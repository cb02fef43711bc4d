"""Our curves against the authors': series by series, over their whole common length, by one rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paper_repro.workflow.claims import UNHEALTHY, ClaimOutcome, limits
from paper_repro.workflow.measures import TOLERANCE, WITHIN, left_out, numbers, verdict_of

__all__ = ["bands_table", "compared", "outcome"]


def compared(ours: pd.DataFrame, authors: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for every series and round that both have.

    Args:
        ours: Rows with ``by``, seed, round, test_accuracy and examples (of an evaluation).
        authors: The same but for examples.
        by: Columns that name a series.

    Returns:
        Columns ``by``, round, ours, theirs (means over seeds), low, high (the authors' seeds), seeds_of_ours,
        seeds_of_theirs, margin, inside, narrowly (inside by the error on the test images alone), finished.
    """
    keys = [*by, "round"]
    # An inner join: of a round that only one side evaluated nothing can be said.
    frames = [_over_seeds(ours, keys).add_suffix("_ours"), _over_seeds(authors, keys).add_suffix("_theirs")]
    runs = ours.assign(finished=ours.get("finished", True)).groupby(keys).agg({"examples": "min", "finished": "all"})
    both = pd.concat([*frames, runs], axis=1, join="inner").reset_index()
    # How far seeds lie apart: the authors' seeds say, or else ours, or else the mean over our series at that round.
    common = both.groupby("round").std_ours.transform("mean")
    spread = both.std_theirs.fillna(both.std_ours).fillna(common).fillna(0.0)
    # √(p(1 − p)/n): what the choice of the n test images alone moves.
    error = np.sqrt(both.mean_theirs * (1 - both.mean_theirs) / both.examples)
    margin = TOLERANCE * error + spread
    # How far our mean lies outside the range of their seeds; negative inside it.
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
            "narrowly": beyond <= TOLERANCE * error,
            "finished": both.finished,
        }
    )


def _over_seeds(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, min, max and standard deviation (NaN of one seed), where all seeds of the series are."""
    groups = rows.dropna(subset="test_accuracy").groupby(list(keys)).test_accuracy
    found = groups.agg(["mean", "min", "max", "std", "count"])
    # Seeds stop at different rounds. Behind the first that stops, means would jump for want of it.
    series = [key for key in keys if key != "round"]
    return found[found["count"] == found.groupby(series)["count"].transform("max")]


def bands_table(found: pd.DataFrame, by: Sequence[str], runs: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each series: how much of it is inside, where it first is not, and how it ends.

    Args:
        found: The rows of ``compared``.
        by: Columns that name a series.
        runs: All rows of ours, also of the seeds that diverged and are not in the means, which are counted.
    """
    away = [name for name, *_ in left_out(runs, by)] if runs is not None else []
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
                "finished": bool(rows.finished.all()),
                "seeds that diverged": away.count(name),
                "share inside": float(rows.inside.mean()),
                "share inside by the error on test images alone": float(rows.narrowly.mean()),
                "first round outside": int(outside["round"].iloc[0]) if len(outside) else None,
                "last accuracy, ours": float(last.ours),
                "last accuracy, authors'": float(last.theirs),
                "largest distance of means": float((rows.ours - rows.theirs).abs().max()),
            }
        )
    return pd.DataFrame(table)


def outcome(claim: str, table: pd.DataFrame, words: str, *, testable: bool, wanted: int = 1) -> ClaimOutcome:
    """The claim that every finished series of DeComFL is inside, of which ``wanted`` must be there to say so.

    A series of which a seed diverged is not inside. One with fewer than ``limits().common`` evaluations that both have
    is not judged, and where all others are inside nothing is decided.

    ``testable`` where the runs have the sizes of the authors'.
    """
    ours = [row for row in table.to_dict("records") if "DeComFL" in row["series"] and row["finished"]]
    enough = [row for row in ours if row["evaluations"] >= limits().common]
    # One series outside refutes the claim. To hold it, all of them must be there.
    outside = any(row["share inside"] < WITHIN or row["seeds that diverged"] for row in enough)
    verdict = verdict_of(not outside, tested=testable and (outside or len(ours) >= wanted))
    if verdict == "holds" and len(enough) < len(ours):
        verdict = UNHEALTHY
    measured: dict[str, float | None] = {}
    for row in table.to_dict("records"):
        to = f"{row['series']}, to round {row['last round']}"
        for name in ("evaluations", "share inside", "last accuracy, ours", "last accuracy, authors'"):
            measured[f"{to}: {name}"] = row[name]
        if row["seeds that diverged"]:
            measured[f"{to}: seeds that diverged"] = row["seeds that diverged"]
    return ClaimOutcome(claim, verdict, numbers(measured), words)
