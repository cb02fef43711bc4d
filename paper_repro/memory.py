"""The memory table (appendix): what server and client need, measured, in models of d parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import joblib
import pandas as pd

from decomfl_lab.files import write_atomically
from decomfl_lab.memory import ROLES, memory_table
from decomfl_lab.training import code_version
from figures.comparison import Panel, comparison
from figures.style import OKABE_ITO, LineStyle
from paper_repro.claims import Claim, Verdict
from paper_repro.part import Made, Options, rendered
from paper_repro.report import Section
from paper_repro.runs import Job
from paper_repro.scales import MEMORY_SIZES

__all__ = ["claims", "jobs", "make"]

_DASHES: tuple[tuple[float, tuple[float, ...]], ...] = ((0.0, ()), (0.0, (4.0, 1.5)))
NEGLIGIBLE = 0.05
"""Of a model."""
ROOM = 0.1
"""Of a model, over what the paper says, that a measurement may be above it: buffers and batches."""


def jobs(options: Options) -> list[Job]:  # noqa: ARG001 (of the protocol)
    """None: memory is measured in processes of its own, when the table is made."""
    return []


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The table, its plot and its verdicts."""
    sizes = MEMORY_SIZES[options.scale]
    table = _measured(sizes, options)
    listed = ", ".join(f"{d:,}" for d in sizes)
    words = f"d = {listed}; eight equal layers, φ = d/8"
    table = table.assign(what=[ROLES[role].what for role in table.role])
    styles = {
        name: LineStyle(color=OKABE_ITO[n % len(OKABE_ITO)], dash=_DASHES[n // len(OKABE_ITO)], linewidth=1.7)
        for n, name in enumerate(dict.fromkeys(table.what))
    }
    figure = comparison(
        [
            Panel(
                frame=table.dropna(subset="models").assign(series=table.what, seed=0),
                x="d",
                y="models",
                by="d",
                xlabel="parameters d",
                ylabel="peak memory in models",
                title="one round, in a fresh process",
                xscale="log",
            )
        ],
        styles,
        title="Memory of server and client",
        caption=f"Models of {words}.",
    )
    wide = table.pivot_table(index=["what", "expected"], columns="d", values="models", sort=False)
    wide.columns = pd.Index([f"d = {d:,}" for d in wide.columns])
    section = Section(
        id="memory",
        title="Memory table (appendix): what server and client need",
        figure_png=rendered(figure),
        settings=pd.DataFrame(),
        notes=[
            "In models of d float32 numbers, the model itself included. Every number is the peak of the memory that "
            "a fresh process maps during one round (the allocator maps each block by itself), above what it mapped "
            "before there was a model: so it counts the vectors that live at once, also where d is small.",
            "The paper's algorithm as printed keeps a snapshot while it takes local steps and perturbs the whole "
            "model. Its d + φ needs a layer-wise perturbation and, for K > 1, an exact way back without a snapshot: "
            "updates on a grid. Its own way back, eq. (sync), is not exact in floating point.",
        ],
        table=wide.reset_index(),
        facts={"models": words},
    )
    return Made(section=section, claims=claims(table, words), figures={"memory": figure}, tables={"memory": table})


def _measured(sizes: Sequence[int], options: Options) -> pd.DataFrame:
    """The table, from the cache where this code has measured these sizes before."""
    key = hashlib.blake2b(repr((code_version(), sizes)).encode(), digest_size=8).hexdigest()
    path = options.cache / f"memory-{key}.csv"
    if not path.exists():
        measure = joblib.delayed(memory_table)  # in processes of their own, so two may run side by side
        halves = joblib.Parallel(n_jobs=2, prefer="threads")(measure(sizes, list(ROLES)[n::2]) for n in range(2))
        place = {role: n for n, role in enumerate(ROLES)}
        whole = pd.concat(halves).sort_values(["d", "role"], key=lambda c: c.map(place) if c.name == "role" else c)
        write_atomically(path, whole.to_csv(index=False))
    return pd.read_csv(path)


def claims(table: pd.DataFrame, words: str) -> list[Claim]:
    """The paper's statements about memory, judged at the largest model measured."""
    largest = table[table.d == table.d.max()].set_index("role")
    models = largest.models
    phi = float(largest.phi_share.iloc[0])

    def measured(*roles: str) -> dict[str, float | None]:
        return {ROLES[role].what: None if pd.isna(models[role]) else float(models[role]) for role in roles}

    def verdict(*comparisons: bool, of: Sequence[str]) -> Verdict:
        if models[list(of)].isna().any():
            return "not tested at this scale"
        return "holds" if all(comparisons) else "does not hold"

    lean = ("client-lean-k1", "client-lean-grid")
    source = "Appendix, memory table"
    return [
        Claim(
            id="memory.server",
            claim="DeComFL's server needs next to no memory without a model (judged: below 5 % of a model)",
            source=source,
            verdict=verdict(models["server"] < NEGLIGIBLE, of=["server"]),
            measured=measured("server", "server-model"),
            scale=words,
        ),
        Claim(
            id="memory.client",
            claim="DeComFL's client needs only d + φ (its lean variants, K = 1 and K > 1)",
            source=source,
            verdict=verdict(*(models[role] < 1 + phi + ROOM for role in lean), of=lean),
            measured={"φ/d": phi, **measured(*lean)},
            scale=words,
        ),
        Claim(
            id="memory.client-as-printed",
            claim="DeComFL's client needs only d + φ (as printed: a snapshot, the whole model perturbed)",
            source=source,
            verdict=verdict(models["client"] < 1 + phi + ROOM, of=["client"]),
            measured={"φ/d": phi, **measured("client-k1", "client", "client-momentum")},
            scale=words,
        ),
        Claim(
            id="memory.fedzo",
            claim="A FedZO client needs 3d",
            source=source,
            verdict=verdict(abs(models["fedzo"] - 3) < ROOM, of=["fedzo"]),
            measured=measured("fedzo"),
            scale=words,
        ),
    ]
