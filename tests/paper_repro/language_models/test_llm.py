"""Part llm: cells from rows, what is compared with what, the paper's own arithmetic, and the whole part."""

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from decomfl_lab.cli.main import main
from decomfl_lab.language import finetuning, tasks
from decomfl_lab.language import pretraining as family
from decomfl_lab.language.corpus import Corpus
from decomfl_lab.language.opt import Size
from decomfl_lab.language.pretraining import PretrainConfig
from decomfl_lab.language.tasks import TASKS, TaskData
from paper_repro.language_models import language, llm
from paper_repro.language_models.llm import FEDZO, P10, claims, in_print, results
from paper_repro.workflow import data, recordings
from paper_repro.workflow.scales import SCALES, TaskTuning
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome, decided
from tests.decomfl_lab.language.tiny import transformers
from tests.paper_repro.parts.test_parts import options
from tests.paper_repro.recomputed.common import rows
from theory.communication import expected_traffic
from theory.notation.printed import EXAMPLES

# --- cells ------------------------------------------------------------------------------------------------------------


def of(frame: pd.DataFrame, row: str, series: str) -> pd.Series:
    """Which rows are those of a run on SST-2."""
    return (frame["row"] == row) & (frame.task == "sst2") & (frame.series == series)


def outcomes(frame: pd.DataFrame) -> dict[str, ClaimOutcome]:
    return {claim.id.partition(".")[2]: claim for claim in claims(frame, "made up")}


def test_a_run_that_diverged_has_no_accuracy_and_is_not_compared() -> None:
    frame = rows("llm", "default")
    before = outcomes(frame)
    frame.loc[of(frame, "OPT-125M", P10), "diverged"] = True
    assert results(frame).set_index(["row", "task", "series"]).diverged["OPT-125M", "sst2", P10]
    assert "diverged" in llm.wide_table(results(frame)).loc[0, P10]
    found = outcomes(frame)
    assert (before["five-points"].verdict, found["five-points"].verdict) == ("holds", "not tested at this scale")
    assert set(before["gain"].measured) - set(found["gain"].measured) == {"gain, SST-2, opt-0.3m"}


def test_savings_and_equal_costs_are_measured_at_equal_rounds() -> None:
    frame = rows("llm", "default")
    before = outcomes(frame)
    # FedZO of one row and DeComFL of the other end sooner than what they are compared with.
    long = of(frame, "OPT-125M", FEDZO) & (frame["round"] > 150)
    long |= of(frame, "OPT-125M+LoRA", P10) & (frame["round"] > 25)
    found = outcomes(frame[~long])
    assert found["saving"].measured == pytest.approx(before["saving"].measured)
    assert (before["peft"].verdict, found["peft"].verdict) == ("holds", "holds")
    bytes_of = "bytes a client in {} rounds of SST-2, opt-0.3m+LoRA"
    there = found["peft"].measured[bytes_of.format(25)]
    assert 2 * there == pytest.approx(before["peft"].measured[bytes_of.format(50)], rel=0.05)


# --- the paper's own arithmetic ---------------------------------------------------------------------------------------

ALWAYS = dict.fromkeys(("printed-accuracies", "printed-costs", "lora-costs", "rounds"), "does not hold")
ALWAYS["ten-gigabytes"] = "holds"


def test_without_runs_only_the_papers_arithmetic_is_judged() -> None:
    found = {name: each.verdict for name, each in outcomes(pd.DataFrame()).items()}
    assert {name: verdict for name, verdict in found.items() if verdict != "not tested at this scale"} == ALWAYS


BY_FORMULA = in_print().replace({"cost": {1.8e6: 0.18e6}})
OF_LORA = in_print().assign(cost=lambda cells: cells.rounds * 2.0 * 294_912)


@pytest.mark.parametrize(
    ("claim", "name", "value"),
    [
        ("printed-costs", "in_print", lambda: BY_FORMULA),
        ("lora-costs", "in_print", lambda: OF_LORA),
        ("printed-accuracies", "MOST_FREQUENT", dict.fromkeys(EXAMPLES, 1)),
    ],
)
def test_with_other_numbers_in_the_paper_its_own_arithmetic_holds(
    claim: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"paper_repro.language_models.llm.{name}", value)
    assert outcomes(pd.DataFrame())[claim].verdict == "holds"


# --- the part ---------------------------------------------------------------------------------------------------------


def test_without_data_there_are_no_jobs_and_the_section_says_what_to_set(data_in: Any, tmp_path: Path) -> None:
    assert llm.jobs(options("default")) == []
    part = llm.make(pd.DataFrame(), [], options("default"))
    folders = "sst2, cb, wsc, wic, rte, boolq, corpus"
    missing, engines = part.section.notes
    assert missing == f"Not computed: set DECOMFL_DATA to a folder that has {folders}."
    assert "P = 10, by which 80 bytes fewer travel, for the paper's 3,000 rounds of OPT-1.3B" in engines
    assert "the messages of the protocol alone 238 bytes (0.47 MB)" in engines  # 3,000 · (238 − 80)
    assert {claim.id for claim in part.claims if claim.verdict == "holds"} == {"llm.ten-gigabytes"}
    assert part.figures == {}
    data_in(tmp_path)
    for name in (*TASKS, "corpus"):
        assert name in data.missing(TASKS, ["opt-0.3m"], {"opt-0.3m"})
        (tmp_path / name).mkdir()
    assert data.missing(TASKS, ["opt-0.3m"], {"opt-0.3m"}) == ""


def test_without_data_recorded_rows_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["paper", "--only", "llm", "--out", str(out), "--json"]) == 0
    found = {claim["id"]: claim for claim in json.loads(capsys.readouterr().out)}
    assert found["llm.dimension-free"]["verdict"] == "holds"
    assert found["llm.five-points"]["verdict"] == "not tested at this scale"  # which takes the paper's models
    assert found["llm.five-points"]["measured"]["gain"] > 0.1
    assert found["llm.five-points"]["scale"].startswith("recorded on ")
    page = (out / "report.html").read_text()
    assert "Not computed here: rows recorded on" in page
    assert "run by 0.1.0" in page


def _examples(task: str, folder: str | Path | None = None) -> TaskData:
    classes = len(TASKS[task].classes)
    some = [(f"words of class {n % classes} number {n}? Yes or No?\n", n % classes) for n in range(40)]
    return TaskData(some, some[:12], f"{TASKS[task].title}: 40 train / 12 test examples; half of it is missing", "d")


@pytest.mark.thorough
def test_the_command_pretrains_a_model_and_makes_the_part(
    tmp_path: Path, data_in: Any, smoke: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    transformers()
    for name in ("corpus", "cb", "wsc"):
        (tmp_path / "data" / name).mkdir(parents=True)
    data_in(tmp_path / "data")
    text = "".join(f"line {n}: it was a good film, and {n * n} people liked it .\n" for n in range(400))
    for module in (family, language):
        monkeypatch.setattr(
            module, "load_corpus", lambda: Corpus((text,), (text[:1500],), "four hundred lines", "0123")
        )
    for module in (tasks, finetuning):
        monkeypatch.setattr(module, "load_task", _examples)
    monkeypatch.setitem(family.SIZES, "tiny", Size(16, 1, 2, 16))
    own = PretrainConfig(size="tiny", vocabulary=300, steps=4, batch=2)
    rounds = TaskTuning(4, 1e-3, 4)
    size = SCALES["smoke"].llm.but(
        models={"OPT-125M": "tiny"},
        settings={
            "OPT-125M": dict.fromkeys(("cb", "wsc", "cb-two-way"), rounds),
            "OPT-125M+LoRA": {"wsc": TaskTuning(4, 1e30, 4)},
        },
        first_order={"OPT-125M": {"wsc": rounds}},
        max_length=12,
        test_examples=0,
    )
    smoke(llm=size, pretrained={"tiny": own})
    out, kept = tmp_path / "out", tmp_path / "kept"
    argv = ["paper", "--scale", "smoke", "--only", "llm", "--jobs", "1", "--out", str(out), "--record", str(kept)]
    assert main([*argv, "--json"]) == 0
    found = {claim["id"]: claim for claim in json.loads(capsys.readouterr().out)}
    made = pd.read_csv(out / "tables" / "llm.csv").set_index(["row", "task", "series"])
    assert len(made) == 3 + 5 + 3 + 4
    assert (made.examples == 12).all()
    full, lora = made.loc[("OPT-125M", "wsc", FEDZO)], made.loc[("OPT-125M+LoRA", "wsc", P10)]
    assert full.d == 8_400  # (V + T + 4)·h + L·(12h² + 13h)
    fedzo = next(job.config for job in llm.jobs(options("smoke")) if job.title == "OPT-125M wsc: FedZO")
    assert full.bytes == expected_traffic(fedzo, int(full.d)).bytes
    assert math.isnan(lora.accuracy)  # η was absurd
    assert made.loc[("OPT-125M", "cb", P10), "majority"] == pytest.approx(1 / 3)
    assert found["llm.saving"]["measured"]["FedZO / DeComFL, tiny, least of its tasks"] > 100
    page = (out / "report.html").read_text()
    assert "half of it is missing" in page
    assert "diverged" in page
    again = recordings.load("llm", "smoke", kept)
    assert again is not None
    cached = llm.make(again.rows, again.provenance, options("smoke"))
    assert [claim.verdict for claim in decided(cached.claims, "smoke")] == [
        claim["verdict"] for claim in found.values()
    ]
