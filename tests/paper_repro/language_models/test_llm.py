"""Part llm: cells from rows, what is compared with what, the paper's own arithmetic, and the whole part."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.language import tasks
from decomfl_lab.language.tasks import TASKS, TaskData
from decomfl_lab.runs import finetuning
from paper_repro.language_models import language, llm
from paper_repro.language_models.llm_claims import FEDZO, P5, P10, claims, methods, printed_costs, results
from paper_repro.pretraining import family
from paper_repro.pretraining.corpus import Corpus
from paper_repro.pretraining.family import PretrainConfig
from paper_repro.workflow import data, recorded
from paper_repro.workflow.claims import decided
from paper_repro.workflow.part import Made
from paper_repro.workflow.scales import SCALES, TaskTuning
from tests.decomfl_lab.language.tiny import transformers
from tests.paper_repro.parts.test_parts import options
from theory.communication import expected_traffic
from theory.notation.printed import EXAMPLES

# --- cells ------------------------------------------------------------------------------------------------------------


def run(
    row: str,
    task: str,
    series: str,
    accuracy: float,
    *,
    rounds: int = 100,
    d: int = 1000,
    diverged: bool = False,
) -> pd.DataFrame:
    """Evaluations of a run in rounds 0, 50 and the last, with the labels of its job."""
    P = methods(row)[series].P
    a_round = {"MeZO": 0.0, FEDZO: 2000.0 * d, "FedAvg": 2000.0 * d}.get(series, 12.0 * P)
    at = np.array(sorted({0, 50, rounds}))
    frame = pd.DataFrame({"round": at, "test_accuracy": np.where(at == rounds, accuracy, 0.55)})
    frame["calibrated_accuracy"] = np.where(at == rounds, accuracy, 0.5)
    frame["wire_scalars"] = at * a_round / 4
    frame["wire_bytes"] = at * a_round * 8
    frame["gradient_scalars"] = at * (4.0 * d if series in (FEDZO, "FedAvg") else 2.0 * P)
    model = "small" if row == "OPT-1.3B" else "tiny"
    labels = {"row": row, "task": task, "series": series, "model": model, "examples": 2000, "majority": 0.51}
    return frame.assign(**labels, seconds=1.0, seed=0, diverged=diverged)


GOOD: Mapping[str, float] = {"FedAvg": 0.9, "MeZO": 0.75, FEDZO: 0.76, P5: 0.75, P10: 0.76}
"""As the paper has them."""


def table(changes: Mapping[tuple[str, str, str], Mapping[str, Any]] | None = None) -> pd.DataFrame:
    """Rows of two models and LoRA as they would have to be; changes of single runs spoil them."""
    changes = changes or {}
    d = {"OPT-125M": 1000, "OPT-1.3B": 10_000, "OPT-125M+LoRA": 100}
    runs = []
    for row in d:
        for task in ("sst2", "rte"):
            for series in methods(row):
                values = {"accuracy": GOOD[series], "d": d[row], **changes.get((row, task, series), {})}
                runs.append(run(row, task, series, **values))
    return pd.concat(runs, ignore_index=True)


def test_a_run_that_diverged_has_no_accuracy_and_is_not_compared() -> None:
    lost = {("OPT-125M", "sst2", P10): {"diverged": True}}
    rows = table(lost)
    assert results(rows).set_index(["row", "task", "series"]).diverged["OPT-125M", "sst2", P10]
    assert "diverged" in llm.wide_table(results(rows)).loc[0, P10]
    found = {claim.id: claim for claim in claims(rows, "made up")}
    assert found["llm.five-points"].verdict == "not tested at this scale"
    assert "gain, SST-2, tiny" not in found["llm.gain"].measured
    assert "gain, RTE, tiny" in found["llm.gain"].measured


# --- verdicts ---------------------------------------------------------------------------------------------------------


def verdicts(rows: pd.DataFrame) -> dict[str, str]:
    return {claim.id.partition(".")[2]: claim.verdict for claim in claims(rows, "made up")}


ALWAYS = dict.fromkeys(("printed-accuracies", "printed-costs", "lora-costs", "rounds"), "does not hold")
ALWAYS["ten-gigabytes"] = "holds"


def test_without_runs_only_the_papers_arithmetic_is_judged() -> None:
    found = verdicts(pd.DataFrame())
    assert {name: verdict for name, verdict in found.items() if verdict != "not tested at this scale"} == ALWAYS


BY_FORMULA = [(*cell[:4], 0.18e6 if cell[4] == 1.8e6 else cell[4]) for cell in printed_costs()]
OF_LORA = [(row, task, series, R, R * 2.0 * 294_912) for row, task, series, R, _ in printed_costs()]


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("printed-costs", "printed_costs", lambda: BY_FORMULA),
        ("lora-costs", "printed_costs", lambda: OF_LORA),
        ("printed-accuracies", "MOST_FREQUENT", dict.fromkeys(EXAMPLES, 1)),
    ],
)
def test_with_other_numbers_in_the_paper_its_own_arithmetic_holds(
    claim: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"paper_repro.language_models.llm_claims.{name}", value)
    assert verdicts(pd.DataFrame())[claim] == "holds"


def test_savings_and_equal_costs_are_measured_at_equal_rounds() -> None:
    spoilt = {("OPT-125M", "rte", FEDZO): {"rounds": 60}, ("OPT-125M+LoRA", "sst2", P10): {"rounds": 50}}
    found = {claim.id: claim for claim in claims(table(spoilt), "made up")}
    assert found["llm.saving"].measured["FedZO / DeComFL, tiny, least of its tasks"] == pytest.approx(2e6 / 120)
    assert found["llm.saving"].measured["FedZO / DeComFL, tiny+LoRA, least of its tasks"] == pytest.approx(2e5 / 60)
    assert found["llm.peft"].verdict == "holds"
    assert found["llm.peft"].measured["tasks compared"] == 2
    assert found["llm.peft"].measured["bytes a client in 100 rounds of RTE, tiny+LoRA"] == pytest.approx(12_000)


# --- the part ---------------------------------------------------------------------------------------------------------

PROVENANCE = [
    {"data": "SST-2: 9 train / 2 test examples, here; tiny: opt, digest 1", "code": "c"},
    {"data": "WSC: 404 train / 104 test examples, here; training examples are 404 of the 554; tiny: opt, digest 1"},
]


def made(rows: pd.DataFrame) -> Made:
    return llm.make(rows, PROVENANCE, options("default"))


def test_without_data_there_are_no_jobs_and_the_section_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DECOMFL_DATA", raising=False)
    assert llm.jobs(options("default")) == []
    part = llm.make(pd.DataFrame(), [], options("default"))
    folders = "sst2, cb, wsc, wic, rte, boolq, corpus"
    missing, engines = part.section.notes
    assert missing == f"Not computed: set DECOMFL_DATA to a folder that has {folders}."
    assert "P = 10, by which 80 bytes fewer travel, for the paper's 3,000 rounds of OPT-1.3B" in engines
    assert "the messages of the protocol alone 238 bytes (0.47 MB)" in engines  # 3,000 · (238 − 80)
    assert {claim.id for claim in part.claims if claim.verdict == "holds"} == {"llm.ten-gigabytes"}
    assert part.figures == {}
    monkeypatch.setenv("DECOMFL_DATA", str(tmp_path))
    for name in (*TASKS, "corpus"):
        assert name in data.missing(TASKS, ["opt-0.3m"], {"opt-0.3m"})
        (tmp_path / name).mkdir()
    assert data.missing(TASKS, ["opt-0.3m"], {"opt-0.3m"}) == ""


MACHINE = {"python": "3", "torch": "2", "numpy": "2", "device": "cpu", "stream_version": 1, "noise_backend": "numba"}


def test_without_data_recorded_rows_are_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DECOMFL_DATA", raising=False)
    kept = tmp_path / "results"
    recorded.save("llm", "default", table(), [{**each, **MACHINE, "code": "of then"} for each in PROVENANCE], kept)
    load = recorded.load
    monkeypatch.setattr(recorded, "load", lambda part, scale: load(part, scale, kept))
    out = tmp_path / "out"
    assert main(["paper", "--only", "llm", "--out", str(out), "--json"]) == 0
    found = {claim["id"]: claim for claim in json.loads(capsys.readouterr().out)}
    assert found["llm.dimension-free"]["verdict"] == "holds"
    assert found["llm.five-points"]["verdict"] == "not tested at this scale"  # which takes the paper's models
    assert found["llm.five-points"]["measured"]["gain"] > 0.2
    assert found["llm.five-points"]["scale"].startswith("recorded on ")
    page = (out / "report.html").read_text()
    assert "Not computed here: rows recorded on" in page
    assert "run by of then" in page


def _examples(task: str, folder: str | Path | None = None) -> TaskData:
    classes = len(TASKS[task].classes)
    some = [(f"words of class {n % classes} number {n}? Yes or No?\n", n % classes) for n in range(40)]
    return TaskData(some, some[:12], f"{TASKS[task].title}: 40 train / 12 test examples; half of it is missing", "d")


@pytest.mark.thorough
def test_the_command_pretrains_a_model_and_makes_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    transformers()
    for name in ("corpus", "cb", "wsc"):
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("DECOMFL_DATA", str(tmp_path / "data"))
    text = "".join(f"line {n}: it was a good film, and {n * n} people liked it .\n" for n in range(400))
    for module in (family, language):
        monkeypatch.setattr(
            module, "load_corpus", lambda: Corpus((text,), (text[:1500],), "four hundred lines", "0123")
        )
    for module in (tasks, finetuning):
        monkeypatch.setattr(module, "load_task", _examples)
    monkeypatch.setitem(family.SIZES, "tiny", family.Size(16, 1, 2, 16))
    own = PretrainConfig(size="tiny", vocabulary=300, steps=4, batch=2)
    monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"].but(pretrained={"tiny": own}))
    rounds = TaskTuning(4, 1e-3, 4)
    size = SCALES["smoke"].llm.but(
        models={"OPT-125M": "tiny"},
        settings={
            "OPT-125M": dict.fromkeys(("cb", "wsc", "cb-two-way"), rounds),
            "OPT-125M+LoRA": {"wsc": rounds._replace(lr=1e30)},
        },
        first_order={"OPT-125M": {"wsc": rounds}},
        max_length=12,
        test_examples=0,
    )
    monkeypatch.setitem(SCALES, "smoke", SCALES["smoke"].but(llm=size))
    out, kept = tmp_path / "out", tmp_path / "kept"
    argv = ["paper", "--scale", "smoke", "--only", "llm", "--jobs", "1", "--out", str(out), "--record", str(kept)]
    assert main([*argv, "--json"]) == 0
    found = {claim["id"]: claim for claim in json.loads(capsys.readouterr().out)}
    made = pd.read_csv(out / "tables" / "llm.csv").set_index(["row", "task", "series"])
    assert len(made) == 3 + 5 + 3 + 4
    assert (made.examples == 12).all()
    full, lora = made.loc[("OPT-125M", "wsc", FEDZO)], made.loc[("OPT-125M+LoRA", "wsc", P10)]
    assert full.d == family.SIZES["tiny"].parameters(300)
    fedzo = next(job.config for job in llm.jobs(options("smoke")) if job.title == "OPT-125M wsc: FedZO")
    assert full.bytes == expected_traffic(fedzo, int(full.d)).bytes
    assert math.isnan(lora.accuracy)  # η was absurd
    assert made.loc[("OPT-125M", "cb", P10), "majority"] == pytest.approx(1 / 3)
    assert found["llm.saving"]["measured"]["FedZO / DeComFL, tiny, least of its tasks"] > 100
    page = (out / "report.html").read_text()
    assert "half of it is missing" in page
    assert "diverged" in page
    again = recorded.load("llm", "smoke", kept)
    assert again is not None
    cached = llm.make(again.rows, again.provenance, options("smoke"))
    assert [claim.verdict for claim in decided(cached.claims, "smoke")] == [
        claim["verdict"] for claim in found.values()
    ]
