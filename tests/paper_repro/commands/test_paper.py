"""``decomfl paper`` on a GPU: what is run, how long, and in which order. Nothing is computed here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from decomfl_lab.cli.main import main
from paper_repro import making
from paper_repro.making import PARTS, _on_device
from paper_repro.parts import fig2, fig3, hessian
from paper_repro.workflow import scales
from paper_repro.workflow.claims import ON_GPU
from paper_repro.workflow.part import Options
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES


def _options(device: str, scale: str = "full") -> Options:
    return Options(scale=SCALES[scale], readings=tuple(scales.READINGS), count="wire", device=device)


def _differences(jobs: list[Job]) -> dict[tuple[str, int], int]:
    plotted = [job for job in jobs if job.config.method.name == "decomfl" and job.labels.get("reading") != "as-written"]
    return {
        (str(job.labels["series"]) + str(job.labels.get("panel")), job.config.seed): job.config.rounds
        for job in plotted
    }


def test_differences_are_whole_and_of_every_seed_on_a_gpu() -> None:
    size = SCALES["full"].fig2
    here, there = (_differences(fig2.jobs(_options(device))) for device in ("cpu", "cuda"))
    assert {seed for _, seed in here} == {0}
    assert {seed for name, seed in there if "local-updates" in name} == set(size.seeds)
    for K, rounds in size.local_rounds.items():
        assert there[f"DeComFL K={K} P=20local-updates", 2] == rounds
    assert there["DeComFL K=4 P=10perturbations", 0] == size.perturbation_rounds
    (rounds,) = _differences(fig3.jobs(_options("cuda"))).values()  # type: ignore[arg-type]
    assert rounds == SCALES["full"].fig3.rounds


def test_what_is_worth_most_goes_first() -> None:
    works = {name: _on_device(PARTS[name].jobs(_options("cuda")), "cuda", n) for n, name in enumerate(ON_GPU)}
    assert all(getattr(work, "device", "cuda") == "cuda" for own in works.values() for work in own)
    first = [work for work in works["fig2"] if getattr(work, "urgency", None) == 0]
    assert any(isinstance(work, Job) and work.config.method.name == "decomfl" for work in first)
    last = max(getattr(work, "urgency", 0) for work in works["fig2"])
    assert last < min(work.urgency for work in works["fig3"] if isinstance(work, Job))
    spectrum = next(work for work in works["hessian"] if isinstance(work, hessian.SpectrumWork))
    assert spectrum.urgency == 10 * ON_GPU.index("hessian")


def test_a_run_has_one_key_on_all_devices() -> None:
    job = fig3.decomfl(SCALES["smoke"])[0]
    (moved,) = _on_device([job], "cuda", 0)
    assert moved.key() == job.key()


def test_minutes_are_hours_of_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "--minutes", "3", "--hours", "1"]) == 2
    assert "minutes must be left out where hours are given, got 3.0" in capsys.readouterr().err
    assert main(["paper", "--minutes", "0"]) == 2
    assert "minutes must be" in capsys.readouterr().err


def test_checking_the_bits_is_a_part_of_the_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Options] = []

    def make(names: Any, options: Options, *_: Any, **__: Any) -> Any:
        seen.append(options)
        return [], [], ""

    monkeypatch.setattr(making, "find_device", lambda name: torch.device(name))
    monkeypatch.setattr(making, "require_bits", lambda device: time.sleep(0.6))
    monkeypatch.setattr(making, "_make", make)
    assert main(["paper", "--device", "cuda", "--minutes", "1", "--out", str(tmp_path)]) == 0
    assert seen[0].hours is not None
    assert 0 < seen[0].hours < 59.5 / 3600
