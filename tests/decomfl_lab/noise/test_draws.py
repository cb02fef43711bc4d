"""Random choices and initial weights from the stream: known answers, distributions, what they do not hang on."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from decomfl_lab.errors import InputError
from decomfl_lab.noise import reference, spec
from decomfl_lab.noise.draws import draws_of
from decomfl_lab.noise.known_answers import POSITIONS, START_ANSWERS
from decomfl_lab.noise.starts import Start
from tests.cases import refuses, rows_of

ROWS = rows_of(__file__)


def test_known_answers_of_random_choices() -> None:
    drawn = draws_of("stream", 5, 4)
    assert drawn.permutation(8).tolist() == ROWS["permutation"]
    assert [drawn.integers(n) for n in (10, 10, 2**40)] == ROWS["integers"]
    assert [value.hex() for value in drawn.dirichlet(np.array([0.3, 1.0, 2.5]), 2).reshape(-1)] == ROWS["shares"]


def test_a_seed_a_path_and_the_calls_before_decide() -> None:
    first = draws_of("stream", 5, 4).permutation(50)
    assert (first == draws_of("stream", 5, 4).permutation(50)).all()
    others = [draws_of("stream", *path).permutation(50) for path in ((6, 4), (5, 3), (5, 4, 0))]
    again = draws_of("stream", 5, 4)
    again.integers(2)
    assert not any((first == other).all() for other in [*others, again.permutation(50)])


def test_calls_take_words_in_turn_however_many_at_a_time() -> None:
    one, other = draws_of("stream", 1), draws_of("stream", 1)
    long = [one.integers(2**32) for _ in range(10_000)]
    other.permutation(9_990)
    assert [other.integers(2**32) for _ in range(10)] == long[-10:]


def test_permutations_are_uniform() -> None:
    drawn = draws_of("stream", 2)
    seen = [tuple(drawn.permutation(3)) for _ in range(3000)]
    assert stats.chisquare([seen.count(order) for order in set(seen)]).pvalue > 1e-3
    assert len(set(seen)) == 6


def test_elements_of_an_array_are_permuted() -> None:
    assert sorted(draws_of("stream", 2).permutation(np.array([5, 7, 9]))) == [5, 7, 9]


def test_whole_numbers_are_uniform() -> None:
    drawn = draws_of("stream", 3)
    assert stats.chisquare(np.bincount([drawn.integers(7) for _ in range(7000)], minlength=7)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 4.0])
def test_shares_have_the_distribution_of_dirichlet(alpha: float) -> None:
    q = draws_of("stream", 4).dirichlet(np.full(3, alpha), 600)
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-15)
    assert stats.kstest(q[:, 0], stats.beta(alpha, 2 * alpha).cdf).pvalue > 1e-3


def test_tiny_parameters_give_one_class_each() -> None:
    q = draws_of("stream", 4).dirichlet(np.full(4, 1e-305), 50)
    assert np.isfinite(q).all()
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-15)


def test_libraries_are_numpy() -> None:
    generator = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(4,)))
    drawn = draws_of("libraries", 5, 4)
    assert (drawn.permutation(20) == generator.permutation(20)).all()
    assert (drawn.dirichlet(np.ones(3), 2) == generator.dirichlet(np.ones(3), 2)).all()
    assert drawn.integers(100) == generator.integers(100)


def test_another_source_is_refused() -> None:
    with pytest.raises(InputError, match="draws must be one of stream, libraries, got 'torch'"):
        draws_of("torch", 5)


# Initial weights ------------------------------------------------------------------------------------------------------


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


@refuses(*ROWS["refused"])
def test_other_starts_are_refused(values: tuple[Any, ...]) -> None:
    Start(*values)
