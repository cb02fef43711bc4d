"""``decomfl paper`` on a GPU: what is run, how long, and in which order. Nothing is computed here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from decomfl_lab.cli.main import main
from paper_repro import making
from paper_repro.making import _on_device
from paper_repro.parts import fig3
from paper_repro.workflow.part import Options
from tests.paper_repro.parts.test_parts import options


def test_a_run_has_one_key_on_all_devices() -> None:
    job = fig3.jobs(options("smoke"))[0]
    (moved,) = _on_device([job], "cuda", 0)
    assert moved.key() == job.key()


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
    assert main(["paper", "--device", "cuda:1", "--minutes", "1", "--out", str(tmp_path)]) == 0
    assert [options.device for options in seen] == ["cuda", "cuda:1"]
