"""Numbers of recorded rows in README and docs/: each is found in the rows again, by code of its own."""

import json
import math
import os
import re
from typing import Any

import pandas as pd
import pytest
from scipy.stats import spearmanr

from paper_repro.commands import findings
from tests.docs.blocks import ROOT
from tests.paper_repro.recomputed import images, others
from tests.paper_repro.recomputed.common import RESULTS, lines, mean_accuracy, outcomes, recorded, rows, to_reach

SCALES = "docs/paper-scales.md"
LOGS = pytest.mark.skipif(not os.environ.get("DECOMFL_REFERENCE"), reason="needs DECOMFL_REFERENCE")


def tells(page: str, *sentences: str) -> None:
    """Assert that a page has the sentences, wherever its lines break."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [sentence for sentence in sentences if " ".join(sentence.split()) not in text] == []


# --- sentences --------------------------------------------------------------------------------------------------------


def test_the_sentences_about_the_edge_have_the_numbers_of_the_rows() -> None:
    frame = rows("edge", "full")
    runs = recorded("edge", "full").frames[""]
    usual = others.usual(runs)
    lost = frame[(frame.estimator == "projection") & (frame.batch == 256) & (frame.factor == 1) & (frame.P == 20)]
    one = usual[usual.apart].seed.iloc[0]
    last = lost[(lost.K == 1) & (lost.beta == 0.9) & (lost.seed == one)].sort_values("round").test_accuracy.iloc[-1]
    right = int((runs.crossed == runs.apart).sum())
    tells(
        SCALES,
        f"All {len(runs)} runs are recorded",
        f"the one run that diverged by the rule kept {100 * last:.0f} % accuracy",
        f"it admits {usual.admitted.min():.5f} to {usual.admitted.max():.5f} at Figure 2's setting",
        f"stable in mean square by the same curvature is {usual.limit.min():.3f} to {usual.limit.max():.3f}",
        f"tells in {right} of {len(runs)} runs whether it diverges",
    )


def test_the_seeds_that_diverged_are_told_with_their_last_rounds() -> None:
    own = lines(rows("fig2", "full"))
    lost = own[own.diverged & (own.series == "DeComFL K=4 P=20")].groupby("seed")["round"].max()
    assert own[own.diverged].groupby(["reading", "panel", "series"]).ngroups == 1
    told = ", ".join(f"seed {seed} after round {r}" for seed, r in lost.items())
    tells(SCALES, f"with K = 4, two of our three seeds diverged: {told}.")


@LOGS
def test_the_sentences_about_the_authors_band_have_the_numbers_of_the_rows() -> None:
    frame = rows("fig2", "full")
    bands = {name: images.bands_2(frame, name) for name in ("as-plotted", "as-written")}
    inside = {name: own[own.judged]["share inside"] for name, own in bands.items()}
    ours, theirs = images.figure_3(rows("fig3", "full")), images.authors_3()
    means = {who: mean_accuracy(own[own.series == "DeComFL"]) for who, own in (("ours", ours), ("theirs", theirs))}
    both = pd.concat(means, axis=1).dropna()
    gap = 100 * (both.ours - both.theirs)
    ends = both.iloc[-1]
    tells(
        SCALES,
        f"lie in the band of the authors' at {100 * min(inside['as-plotted']):.0f} % or more of the evaluations",
        f"in the band at more than {100 * max(inside['as-written']):.0f} % of its evaluations",
        f"ends Figure 3 at {ends.ours:.3f} after 3,000 rounds, the authors' log at {ends.theirs:.3f}",
        f"From round 40 to 500 the two are within {gap.loc[40:500].abs().max():.1f} points",
        f"then theirs falls behind, by {gap[2000]:.1f} at 2,000",
    )


def test_the_recorded_runs_of_smollm2_are_told_as_they_are() -> None:
    frame = rows("smollm2", "full").set_index("round")
    table = [
        f"| {r} | {frame.test_accuracy[r]:.3f} | {frame.calibrated_accuracy[r]:.3f} | {frame.test_loss[r]:.3f} | "
        + ("0 |" if r == 0 else f"{frame.wire_bytes[r] / 8 / 1000:.1f} |")
        for r in (0, 25, 100, 200)
    ]
    gain = 100 * (frame.test_accuracy[200] - frame.test_accuracy[0])
    over = 100 * (frame.test_accuracy[200] - frame.calibrated_accuracy[0])
    sentence = f"accuracy rises by {gain:.0f} points, {over:.1f} above the calibrated model"
    tells("docs/fine-tuning.md", *table, sentence)


def cost_rows() -> list[str]:
    """The rows of the README's table: what Figure 2's runs with K = 10 send to an accuracy, in both countings."""
    runs = images.figure_2(rows("fig2", "full"))[lambda t: t.panel == "local-updates"]
    both = [runs[runs.series == name] for name in ("DeComFL K=10 P=20", "FedAvg K=10")]
    told = []
    for level in (0.80, 0.90, 0.95, 0.96, 0.97):
        wire, axis = ([to_reach(run, level, f"{count}_scalars") for run in both] for count in ("wire", "plotted"))
        shown = [f"{level:.0%}".replace("%", " %"), *(f"{4 * own / 1000:.3g} kB" for own in wire)]
        told.append(f"| {' | '.join([*shown, *(f'{theirs / ours:.2g}' for ours, theirs in (wire, axis))])} |")
    return told


def test_the_readme_tells_the_cost_of_figure_2_by_both_countings() -> None:
    ours, logs = (
        next(row for row in outcomes() if row["id"] == f"fig2.saving{where}")["measured"]
        for where in ("", "-in-the-logs")
    )
    more, in_logs = (1 / each["FedAvg / DeComFL, wire"] for each in (ours, logs))
    sentence = (
        f"So to 97 % DeComFL sends {more:.1f} times FedAvg's bytes ({in_logs:.2f} times in the authors' logs); by the "
        "axis of the paper's figure, which counts one direction and every client in every round, FedAvg sends "
        f"{ours['FedAvg / DeComFL, plotted']:.1f} times DeComFL's."
    )
    tells("README.md", *cost_rows(), sentence)


def test_the_page_that_advises_has_the_numbers_of_the_rows() -> None:
    runs = images.figure_2(rows("fig2", "full"))[lambda t: t.panel == "local-updates"]
    both = [runs[runs.series == name] for name in ("DeComFL K=10 P=20", "FedAvg K=10")]
    told = []
    for level in (0.80, 0.97):
        rounds, scalars = ([to_reach(run, level, of) for run in both] for of in ("round", "wire_scalars"))
        told.append(f"| to {100 * level:.0f} %: rounds | {rounds[0]:.0f} | {rounds[1]:.0f} |")
        told[-1] += f" | bytes a client | {4 * scalars[0] / 1000:.3g} kB | {4 * scalars[1] / 1000:.3g} kB |"
    ends = [run[run["round"] == 1000].test_accuracy.mean() for run in both]
    wire = next(row for row in outcomes() if row["id"] == "fig2.saving")["measured"]["FedAvg / DeComFL, wire"]
    told.append(f"| accuracy after 1,000 rounds | {100 * ends[0]:.1f} % | {100 * ends[1]:.1f} % |")
    tells("docs/is-it-for-me.md", *told, f"it sends {1 / wire:.1f} times as many bytes as FedAvg")


def test_the_numbers_that_the_page_of_findings_tells_are_recorded_ones() -> None:
    """``tests/paper_repro/test_recomputed.py`` finds these in the rows again."""
    recorded = {plain(value) for outcome in outcomes() for value in outcome["measured"].values()}
    cells = [line.strip("| ").split(" | ") for line in findings.page().split("## The experiments")[1].splitlines()]
    told = [cell[2] for cell in cells if len(cell) == 3 and cell[0].startswith("“")]
    shown = [each.split()[-1] for cell in told for each in re.sub(r"\[\^[\w-]+\]", "", cell).split("; ") if each]
    assert len(shown) > 50
    assert [each for each in shown if each not in recorded and any(map(str.isdigit, each))] == []


def plain(value: float | None) -> str:
    """A number as pages tell it."""
    return "never" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def test_the_numbers_of_the_recorded_readme_are_those_of_the_rows() -> None:
    page = "paper_repro/results/README.md"
    two = rows("fig2", "full")
    own = two[two.reading == "as-plotted"]
    keys = ["panel", "series", "seed", "round"]
    both = own[own.check].merge(own[~own.check], on=keys)
    gap = 100 * (both.test_accuracy_x - both.test_accuracy_y).abs().max()
    estimates = rows("hessian", "full").sort_values("step").query("kind == 'estimate'").groupby("name").value.last()
    kappas = [estimates[name] for name in others.READINGS]
    table1 = lines(rows("table1", "full"))
    tells(
        page,
        f"at no evaluation is that more than {gap:.2f} points from the run by projection",
        f"At the end κ is {min(kappas):.1f} to {max(kappas):.1f}, by four readings",
    )
    assert len(table1) > 0


def test_peaks_of_memory_are_what_docs_say_of_them() -> None:
    table = rows("memory", "default")
    above = (table.models - table.expected)[table.d > 10**8]
    assert above.max() < 0.01
    small = table[(table.d < 2 * 10**5) & (table.expected > 0)]
    more = (small.models / small.expected - 1).max()
    assert 0.05 < more < 0.06
    tells("docs/methods.md", "these to 0.01 models at d = 10⁸, and up to 6 % more at d = 10⁵")


def test_bytes_on_the_wire_are_told_as_they_were_counted() -> None:
    counted = json.loads((RESULTS / "engines.json").read_text(encoding="utf-8"))["rows"]
    messages, sealed, secured, _ = (row["bytes"] for row in counted)
    tells("docs/is-it-for-me.md", f"scalars each way is {sealed} bytes on the wire")
    both = (
        f"has {messages} bytes of messages. On the wire they are **{sealed} bytes** with keyed tags and {secured} with"
    )
    tells("docs/federations.md", both)


def test_kappa_of_language_models_is_told_as_it_is_recorded() -> None:
    found = json.loads((RESULTS / "kappa-language.json").read_text(encoding="utf-8"))["models"]
    rows_told = []
    for name, each in found.items():
        title = name.replace("-Instruct", "").partition(" 206")[0]
        title = title if title.startswith("Smol") else f"{name.partition(',')[0]}, d = {each['gauss-newton']['d']:,}"
        gauss, hess = each["gauss-newton"]["estimate"], each["hessian"]["estimate"]
        digits = 2 if title.startswith("Smol") else 3
        told = interval(gauss, digits)
        exact = next(row for row in each["exact by layer"]["rows"] if row["layer"] == "all")["kappa"]
        rows_told.append(f"| {title} | {told} | {interval(hess, 2)} | ")
        rows_told.append(f" | {exact:.3f} |")
    tells("paper_repro/results/README.md", *rows_told)


def interval(found: dict[str, Any], digits: int) -> str:
    """κ and its interval, rounded."""
    low, high = found["interval"]
    return f"{found['kappa']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def test_the_census_is_told_as_it_is_recorded() -> None:
    every = rows("census", "full")
    usual = every[(every.layer == "all") & every.usual]
    last = usual[usual.steps.isna() | (usual.steps == usual.steps.max())]  # at the last moment
    told = [f"In all {last.groupby(['network', 'data']).ngroups} networks, with {last.d.min():,} to {last.d.max():,}"]
    for name, own in last.groupby("reading"):
        middle, least, most = (own.value.quantile(q) for q in (0.5, 0, 1))
        ends = f"{least:.3g} to {most:,.0f}" if most >= 100 else f"{least:.3g} to {most:.3g}"
        told.append(f"| {name} | {middle:.3g} | {ends} | {100 * (own.high / own.d).max():.2g} % |")
    # Along training: of the networks that were measured at all moments, not of those that happen to be there.
    positive = usual[(usual.reading == "positive") & usual.steps.notna()]
    moments = positive.groupby(["network", "data", "loss"])
    whole = moments.filter(lambda own: own.steps.nunique() == positive.steps.nunique())
    medians = whole.groupby("steps").value.median()
    told.append(f"its median is {', '.join(f'{each:.3g}' for each in medians)}")
    # Beside n, and the one of which least is known, by either loss.
    cnn = every[(every.network == "cnn-mnist") & (every.data == "mnist") & (every.reading == "positive")]
    few, many = (float(cnn[~cnn.usual & (cnn.n == n)].value.iloc[0]) for n in (64, 4096))
    wide = last[(last.network == "smollm2") & (last.reading == "positive")].set_index("loss")
    two, every_word = (wide.loc[f"cross-entropy, {of}"] for of in ("two verbalizers", "whole vocabulary"))
    told += [f"{few:.1f} to {many:.1f}", f"is known to be {two.low:.0f} to {two.high:,.0f}, over the"]
    told += [f"whole vocabulary at most {every_word.high:,.0f}"]
    tells(
        "docs/census.md", *told, f"({last.network.nunique()} architectures; losses of {last.n.min()} to {last.n.max()}"
    )


def test_the_two_theories_are_told_as_they_are_recorded() -> None:
    every = rows("kernels", "full")
    errors, rounds = every[every.kind == "error"], every[(every.kind == "rounds") & (every.P == 10)]
    ours = errors.value / ((errors.r / errors.P) ** 0.5 + errors.r / errors.P)
    theirs = errors.value / (errors.V * errors.V.clip(lower=2).map(math.log) / errors.P) ** 0.5
    later = ours[errors.P >= 10]
    ranks = [spearmanr(rounds[name], rounds.value)[0] for name in ("V", "r of all", "κ", "κ₊", "d")]
    tells(
        "docs/two-theories.md",
        f"measured {every.network.nunique()} networks",
        f"d from {every.d.min():,} to {every.d.max():,}, V from {every.V.min()} to {every.V.max():,}",
        f"{ours.min():.2f} to {ours.max():.2f} times √(r/P) + r/P** ({later.min():.2f} to {later.max():.2f} from",
        f"and {theirs.min():.2f} to {theirs.max():.2f} times √(V log V/P)",
        f"| {' | '.join(f'{each:.2f}' for each in ranks)} |",
    )
