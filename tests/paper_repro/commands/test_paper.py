"""``decomfl paper`` on a GPU: what is run, how long, and in which order. Nothing is computed here."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from decomfl_lab.cli.main import main
from paper_repro import pipeline, request
from paper_repro.request import Request
from paper_repro.sources import Found, works_of
from tests.paper_repro.parts.test_parts import options


def test_a_run_has_one_key_on_all_devices() -> None:
    here, there = (works_of("fig3", options("smoke", device=device))[0] for device in ("cpu", "cuda"))
    assert (here.device, there.device) == ("cpu", "cuda")
    assert here.key() == there.key()


def test_checking_the_bits_is_a_part_of_the_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []

    def make(request: Request, compute: Any) -> Found:
        seen.append((request.options.device, request.until - time.monotonic()))
        return Found()

    monkeypatch.setattr(request, "find_device", lambda name: torch.device(name))
    monkeypatch.setattr(request, "require_bits", lambda device: time.sleep(0.6))
    monkeypatch.setattr(pipeline, "computed_parts", make)
    assert main(["paper", "--device", "cuda", "--minutes", "1", "--out", str(tmp_path)]) == 0
    assert main(["paper", "--device", "cuda:1", "--minutes", "1", "--out", str(tmp_path)]) == 0
    assert [device for device, _ in seen] == ["cuda", "cuda:1"]
    assert all(0 < seconds < 59.5 for _, seconds in seen)
