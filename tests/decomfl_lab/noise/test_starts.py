"""Initial weights from the stream: their bits, their distributions, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from decomfl_lab.noise import reference, spec
from decomfl_lab.noise.starts import Start
from decomfl_lab.noise.vectors import POSITIONS, START_ANSWERS
from tests.refusals import refuses

N = 200_000


@pytest.mark.parametrize("answer", START_ANSWERS, ids=str)
def test_known_answers_of_initial_weights(answer: Any) -> None:
    x = Start(answer.draw, answer.scale, answer.cut).elements(answer.key, answer.tensor, 200)
    assert tuple(f"{bits:08x}" for bits in x.view(np.uint32)[list(POSITIONS)]) == answer.bits


@pytest.mark.parametrize("start", [Start("uniform", 0.2), Start("normal", 0.02), Start("normal", 1.0, 0.5)], ids=str)
def test_a_longer_tensor_begins_as_a_shorter_one(start: Start) -> None:
    long = start.elements(7, 3, 1000)
    for count in (0, 1, 127, 128, 129):
        np.testing.assert_array_equal(start.elements(7, 3, count), long[:count])


def test_a_tensor_of_many_slices_is_made_of_the_same_elements() -> None:
    count = 2**20 + 5  # one tile more than is made at a time
    x = Start("uniform", 1.0).elements(5, 0, count)
    words = reference.tile_words(5, 0, spec.TAG_START, range(2**13, 2**13 + 1)).reshape(-1)[:5].view(np.int32)
    np.testing.assert_array_equal(x[-5:], ((words >> 8) | 1).astype(np.float32) * np.float32(2.0**-23))


def test_tensors_keys_and_directions_have_numbers_of_their_own() -> None:
    start = Start("normal", 1.0)
    x = start.elements(1, 2, 500)
    others = [
        start.elements(1, 3, 500),
        start.elements(2, 2, 500),
        reference.gaussian_tiles(1, 2, range(4)).reshape(-1),
    ]
    assert all(np.abs(np.corrcoef(x, other[:500])[0, 1]) < 0.2 for other in others)


@pytest.mark.parametrize(
    ("start", "law"),
    [
        (Start("uniform", 0.25), stats.uniform(-0.25, 0.5)),
        (Start("normal", 2.0), stats.norm(scale=2.0)),
        *((Start("normal", 1.0, cut), stats.truncnorm(-cut, cut)) for cut in (0.1, 1.0, 2.0)),
    ],
)
def test_elements_have_their_distribution(start: Start, law: Any) -> None:
    x = start.elements(1, 0, N)
    assert np.abs(x).max() <= np.float32(law.support()[1])
    assert stats.kstest(x, law.cdf).pvalue > 1e-3


def test_only_what_was_cut_is_drawn_anew() -> None:
    free, cut = (Start("normal", 1.0, c).elements(9, 4, 1000) for c in (None, 1.0))
    kept = np.abs(free) <= 1
    np.testing.assert_array_equal(free[kept], cut[kept])
    assert (free[~kept] != cut[~kept]).all()


def test_constants_are_constant() -> None:
    assert set(Start("constant", -1.5).elements(0, 0, 9)) == {-1.5}


@refuses(
    (("gauss", 1.0), "draw must be one of constant, uniform, normal, got 'gauss'"),
    (("normal", -1.0), "scale must be 0 or more"),
    (("normal", 1e39), "scale must be a float32 number"),
    (("normal", float("nan")), "scale must be a float32 number"),
    (("normal", "1"), "scale must be a float32 number"),
    (("uniform", 1.0, 2.0), "cut must be left out unless draw is normal"),
    (("normal", 1.0, 1e-9), "cut must be in 0.1..10"),
    (("normal", 1.0, True), "cut must be a finite number above 0"),
)
def test_other_starts_are_refused(values: tuple[Any, ...]) -> None:
    Start(*values)
