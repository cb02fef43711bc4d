"""Averages over up to 10⁸ draws, and directions that are spoilt a little."""

from __future__ import annotations

import numpy as np
import pytest

from decomfl_lab import noise
from decomfl_lab.noise import Distribution
from tests.decomfl_lab.noise.averages import averages


@pytest.mark.parametrize("draws", [4_000_000, pytest.param(100_000_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("law", Distribution)
def test_averages_over_many_draws_lie_within_five_standard_errors(law: Distribution, draws: int) -> None:
    found = averages(law, draws, seed=1)
    assert len(found) == (18 if law is not Distribution.RADEMACHER else 12)
    assert max(each.draws for each in found) >= draws
    for each in found:
        assert abs(each.deviation) < 5, each


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("E z^2", lambda z: z * np.float32(1.003)),
        ("E z^1", lambda z: z + np.float32(0.004)),
        ("P(|z| > 4)", lambda z: np.clip(z, -3.9, 3.9)),
        ("E z_j z_j+32 (next word)", lambda z: np.where(np.arange(z.size) % 64 < 32, z, np.roll(z, 32))),
        ("E z_j z_j+1 (next lane)", lambda z: z + np.float32(0.01) * np.roll(z, 1)),
        ("(E zzᵀ − I)² / s.e.²", lambda z: z + np.float32(0.01) * np.roll(z, 5)),
    ],
)
def test_spoilt_directions_are_noticed(name: str, spoil, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    right = noise.direction
    monkeypatch.setattr(noise, "direction", lambda *a, **k: spoil(right(*a, **k)))
    found = next(each for each in averages(Distribution.GAUSSIAN, 4_000_000) if each.name == name)
    assert abs(found.deviation) > 5, found
