"""``decomfl bench mezo``: what its rows say, and that a wrong step would show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mezo import MezoOptions, MezoRow, mezo
from benchmarks.mould import BenchmarkError
from benchmarks.ways import mezo as ways
from decomfl_lab import InputError
from decomfl_lab.cli.main import main
from decomfl_lab.optim import MeZO
from decomfl_lab.runs.memory import status_bytes
from tests.decomfl_lab.language.tiny import save_opt, transformers

SMALL = MezoOptions(vocabulary=300, batch_size=3, steps=3, repeats=1, memory=False)
TRAINER = """
class OurTrainer:
    def zo_perturb_parameters(self, random_seed=None, scaling_factor=1):
        torch.manual_seed(self.seed)
        for p in self.named:
            z = torch.normal(mean=0, std=1, size=p.size(), device=p.device, dtype=p.dtype)
            p.data = p.data + scaling_factor * self.args.zo_eps * z

    def zo_forward(self, model, inputs):
        with torch.inference_mode():
            return self.compute_loss(model, inputs)

    def zo_step(self, model, inputs):
        self.named, self.seed = list(model.parameters()), np.random.randint(1000)
        self.zo_perturb_parameters(scaling_factor=1)
        above = self.zo_forward(model, inputs)
        self.zo_perturb_parameters(scaling_factor=-2)
        self.g = ((above - self.zo_forward(model, inputs)) / (2 * self.args.zo_eps)).item()
        self.zo_perturb_parameters(scaling_factor=1)
        return above

    def zo_update(self, model):
        torch.manual_seed(self.seed)
        for p in self.named:
            z = torch.normal(mean=0, std=1, size=p.size(), device=p.device, dtype=p.dtype)
            p.data = p.data - self._get_learning_rate() * self.g * z
"""
"""A trainer of the form of MeZO's."""


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER)
    return path


def test_all_ways_have_the_same_losses_and_only_the_object_does_not_drift(trainer: Path) -> None:
    transformers()
    rows = {row.way: row for row in mezo.rows(replace(SMALL, trainer=trainer))}
    assert list(rows) == ["in place", ways.THEIRS, ways.OBJECT, ways.LOGGED]
    for way, row in rows.items():
        assert row.apart < 1e-4
        assert (row.drift == 0) == (way in (ways.OBJECT, ways.LOGGED))
        assert row.ratio == pytest.approx(rows["in place"].seconds / row.seconds)
    assert rows[ways.LOGGED].log_bytes == 100


def test_other_losses_are_told(trainer: Path) -> None:
    transformers()
    trainer.write_text(TRAINER.replace("self.g * z", "self.g * z * 30"))
    with pytest.raises(BenchmarkError, match="MeZO's trainer has other losses than in place"):
        list(mezo.rows(replace(SMALL, trainer=trainer)))


def test_a_log_that_does_not_replay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers()
    monkeypatch.setattr(MeZO, "seal", lambda self: self._log.cut(1))
    with pytest.raises(BenchmarkError, match="does not give the trained weights"):
        list(mezo.rows(SMALL))


def test_a_file_that_is_no_trainer_is_refused(trainer: Path) -> None:
    transformers()
    trainer.write_text("def zo_step(self): ...")
    with pytest.raises(InputError, match="trainer must be MeZO's large_models/trainer.py"):
        list(mezo.rows(replace(SMALL, trainer=trainer)))


def test_a_model_of_a_folder_reads_sst2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = save_opt(tmp_path / "mine"), tmp_path / "sst2"
    data.mkdir()
    for part in ("train", "validation"):
        rows = [{"sentence": "a fine film ", "label": 1}, {"sentence": "dull ", "label": 0}] * 4
        (data / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--model", str(folder), "--task-data", str(data), "--steps", "2", "--repeats", "1"]
    code, told = main(["bench", "mezo", *arguments, "--no-memory", "--json"]), capsys.readouterr()
    assert code == 0, told.err
    (table,) = json.loads(told.out)["tables"]
    assert [MezoRow(**row).data for row in table["rows"]] == ["SST-2"] * 3


@pytest.mark.thorough
@pytest.mark.skipif(status_bytes("VmHWM") is None, reason="this system does not tell peaks")
def test_the_object_needs_no_more_than_the_largest_tensor_beside_the_model() -> None:
    """d = 4.5 million, of which the embedding is a third; a step in place needs a tensor of noise, too."""
    transformers()
    peak = ways.peak_apart("opt-4m", 6000, ways.OBJECT, None)
    assert peak is not None
    assert 1.3 < peak < 1.45
