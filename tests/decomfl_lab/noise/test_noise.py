"""The perturbation stream: published vectors, our own vectors, slices, laws, averages over up to 10⁸ draws."""

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from decomfl_lab import InputError, noise
from decomfl_lab.engines.kernels import cnn as cnn_kernel
from decomfl_lab.engines.kernels import tiles
from decomfl_lab.laws.strategies import counters, distributions, seeds
from decomfl_lab.noise import Distribution, derive_seed, kernel_cache, known_answers, numba_cpu
from decomfl_lab.noise.known_answers import KNOWN_ANSWERS, PHILOX_ANSWERS
from decomfl_lab.noise.reference import philox4x32
from tests.cases import refuses

LENGTH = 1_000_000  # elements of a direction
SIDE = 16  # of the matrix that should be the identity
NEIGHBOURS = {1: "lane", 32: "word", 128: "tile"}  # elements that share ever less of what made them, by their distance


@dataclass
class Average:
    """An average over independent draws, and what it should be; its variance is that of one draw."""

    name: str
    expected: float
    variance: float
    total: float = 0.0
    draws: int = 0

    def add(self, values: NDArray[Any]) -> None:
        self.total += float(values.sum(dtype=np.float64))
        self.draws += values.size

    @property
    def deviation(self) -> float:
        """In standard errors; without any, which is the average of a constant, 0 or infinite."""
        difference = self.total / self.draws - self.expected
        error = math.sqrt(self.variance / self.draws)
        return difference / error if error > 0 else math.inf * difference if difference else 0.0


def averages(distribution: Distribution, draws: int, *, seed: int = 0) -> list[Average]:
    """Averages over at least so many draws of a million elements; each deviation should be about standard normal.

    Moments 1 to 6, tail weights P(|z| > 1..5) (not of signs), products with the next lane, word and tile, of the same
    element in neighbouring directions p and p + 1 and in neighbouring seeds s and s + 1, and the mean square of the
    entries of mean(z zᵀ) − I for vectors of 16 consecutive elements. The sphere has the Gaussian's moments to 1/d.
    """
    signs, found = distribution is Distribution.RADEMACHER, dict[str, Average]()
    matrix, vectors = np.zeros((SIDE, SIDE)), 0
    for key in range(-(-draws // (4 * LENGTH))):
        base = derive_seed(seed, key)
        z = np.stack([noise.direction(base, p, LENGTH, distribution=distribution) for p in range(4)])
        shifted = noise.direction((base + 1) % 2**64, 0, LENGTH, distribution=distribution)
        for name, expected, variance, values in _looked_at(z.astype(np.float64), shifted, signs):
            found.setdefault(name, Average(name, expected, variance)).add(values)
        block = z.astype(np.float64)[:, : LENGTH // SIDE * SIDE].reshape(-1, SIDE)
        matrix += block.T @ block
        vectors += len(block)
    # The upper triangle of mean(z zᵀ) − I, in standard errors and squared: each has expectation 1, variance 2.
    i, j = np.triu_indices(SIDE, k=1 if signs else 0)
    errors = np.where(i == j, 2.0, 1.0) / vectors
    identity = Average("(E zzᵀ − I)² / s.e.²", 1.0, 2.0)
    identity.add((matrix / vectors - np.eye(SIDE))[i, j] ** 2 / errors)
    return [*found.values(), identity]


def _looked_at(
    z: NDArray[np.float64], shifted: NDArray[np.float32], signs: bool
) -> Iterator[tuple[str, float, float, NDArray[Any]]]:
    """Name, expectation, variance and values, of z (4, LENGTH) and of direction 0 under the next seed."""
    # E z^2k is (2k − 1)!! of N(0, 1), and 1 of signs; odd moments are 0. Var z^k = E z^2k − (E z^k)².
    moment = {k: 0.0 if k % 2 else 1.0 if signs else float(math.prod(range(1, k, 2))) for k in range(1, 13)}
    power = np.ones_like(z)
    for k in range(1, 7):
        power = power * z
        yield f"E z^{k}", moment[k], moment[2 * k] - moment[k] ** 2, power
    for t in () if signs else (1, 2, 3, 4, 5):
        weight = math.erfc(t / math.sqrt(2.0))
        yield f"P(|z| > {t})", weight, weight * (1 - weight), np.abs(z) > t
    for lag, name in NEIGHBOURS.items():
        yield f"E z_j z_j+{lag} (next {name})", 0.0, 1.0, z[:, :-lag] * z[:, lag:]
    yield "E z(p)_j z(p+1)_j", 0.0, 1.0, z[:-1] * z[1:]
    yield "E z(s)_j z(s+1)_j", 0.0, 1.0, z[0] * shifted
    if not signs:  # of z² too: independence is more than no correlation
        yield "E (z(p)_j² − 1)(z(p+1)_j² − 1)", 0.0, 4.0, (z[:-1] ** 2 - 1) * (z[1:] ** 2 - 1)


BACKENDS = noise.available_backends()


def _hex(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_a_processor_that_loses_small_numbers_is_refused() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot be told to flush small numbers to 0")
    try:
        with pytest.raises(InputError, match=r"flushing of small numbers to 0 must be off .*, got 'on'"):
            noise.axpy(np.ones(3, np.float32), 1, [1e-38], d=3)
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, words: str) -> None:
    k0, k1 = _hex(key)
    out = philox4x32(np.array(_hex(counter), dtype=np.uint32)[:, None], (k0, k1))
    assert out[:, 0].tolist() == _hex(words)


def test_the_specification_itself_is_among_the_known_answers() -> None:
    """The two vectors that the specification prints, copied here so that the table cannot drift from them."""
    table = {(answer.distribution, answer.key, answer.p): answer.bits for answer in KNOWN_ANSWERS}
    assert known_answers.POSITIONS == (0, 1, 32, 64, 96, 127, 128)
    first = "bfa16c47 bdcc0410 befe6d85 3e828295 bf3da834 bf72f2bc 3e9e4178"
    second = "3ea3c1e6 3f9d7acd bee7cee9 3f29fe33 3ef2ee42 401dca39 3f327e8e"
    assert table[Distribution.GAUSSIAN, 0, 0] == tuple(first.split())
    assert table[Distribution.GAUSSIAN, 0xDEADBEEF12345678, 3] == tuple(second.split())


@given(seeds, st.integers(0, 40), st.integers(1, 3000))
def test_sphere_directions_have_length_root_d(seed: int, p: int, d: int) -> None:
    z = noise.direction(seed, p, d, distribution=Distribution.SPHERE).astype(np.float64)
    assert abs(np.linalg.norm(z) / np.sqrt(d) - 1) < 2.0**-22


@given(counters, st.integers(1, 600), st.data(), st.sampled_from([np.float32, np.float64]))
def test_axpy_has_the_bits_of_one_term_at_a_time_whatever_the_cut(
    counter: tuple[int, int, Distribution], d: int, data: st.DataObject, dtype: type
) -> None:
    seed, first_p, law = counter
    c = np.array(data.draw(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=5)), dtype=np.float32)
    start = np.linspace(-1, 1, d).astype(dtype)
    wanted = start.copy()
    for n, coefficient in enumerate(c):
        z = noise.direction(seed, first_p + n, d, distribution=law, backend="numpy")
        wanted = wanted + dtype(coefficient) * z.astype(dtype)
    cut = data.draw(st.integers(0, d))
    for backend in BACKENDS:
        y = start.copy()
        for first, piece in ((0, y[:cut]), (cut, y[cut:])):
            if piece.size:
                noise.axpy(piece, seed, c, d=d, first=first, first_p=first_p, distribution=law, backend=backend)
        assert y.tobytes() == wanted.tobytes(), backend


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("law", Distribution)
def test_projections_are_products_with_the_directions_whatever_the_backend_and_threads(
    law: Distribution, dtype
) -> None:  # type: ignore[no-untyped-def]
    streams = [(5, 0), (5, 1), (2**63 + 7, 40)]
    for d in (1, 128, 20_001):  # less than a tile, one tile, several slices
        v = np.random.default_rng(d).standard_normal((3, d)).astype(dtype)
        z = np.stack([noise.direction(seed, p, d, distribution=law) for seed, p in streams]).astype(np.float64)
        found = noise.project(v, streams, distribution=law, backend="numpy")
        assert found == pytest.approx(v.astype(np.float64) @ z.T, rel=1e-11, abs=1e-9)
        for backend in {"numpy", noise.cpu_backend()}:
            for workers in (1, 3):
                again = noise.project(v, streams, distribution=law, backend=backend, workers=workers)
                assert again.tobytes() == found.tobytes()
        alone = noise.project(v[1:2], streams[2:], distribution=law)
        assert alone[0, 0] == found[1, 2]


def test_numba_agrees_with_the_reference_on_a_million_elements() -> None:
    for law in Distribution:
        a, b = (noise.direction(3, 5, 1_000_003, distribution=law, backend=name) for name in ("numpy", "numba"))
        assert a.tobytes() == b.tobytes(), law


@given(distributions)
def test_no_global_generator_is_touched(law: Distribution) -> None:
    torch.manual_seed(5)
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    noise.direction(1, 0, 300, distribution=law)
    noise.axpy(np.zeros(300), 1, [0.5], d=300, distribution=law)
    assert torch.equal(before, torch.get_rng_state())
    assert (legacy == np.random.get_state()[1]).all()  # type: ignore[index]


@given(seeds, st.lists(st.integers(0, 2**64 - 1), max_size=3), st.lists(st.integers(0, 2**64 - 1), max_size=3))
def test_seeds_of_different_places_differ(run_key: int, a: list[int], b: list[int]) -> None:
    assert (derive_seed(run_key, *a) == derive_seed(run_key, *b)) == (a == b)


@refuses(
    (lambda: noise.direction(-1, 0, 5), "seed must be an integer in 0..18446744073709551615, got -1"),
    (lambda: noise.direction(0, 0, 0), "d must be an integer of at least 1, got 0"),
    (lambda: noise.direction(0, 0, 5, first=4, count=2), r"first \+ count must be at most d=5, got 6"),
    (lambda: noise.direction(0, 0, 5, backend="cuda"), "backend must be one of numpy, numba, triton, got 'cuda'"),
    (lambda: noise.axpy(np.zeros((2, 2)), 0, [1.0], d=4), "y must be a contiguous float32 or float64 vector"),
    (lambda: noise.axpy(np.zeros(4, np.float16), 0, [1.0], d=4), "y must be a contiguous"),
    (lambda: noise.axpy(np.zeros(8)[::2], 0, [1.0], d=4), "y must be a contiguous"),
    (lambda: noise.require_distribution("cauchy"), "must be one of gaussian, sphere, rademacher, got 'cauchy'"),
    (
        lambda: noise.require_distribution("low-rank"),
        "rademacher, as only version 0.1 of decomfl-lab has low-rank directions, got 'low-rank'",
    ),
)
def test_bad_input_is_refused_by_name(call) -> None:  # type: ignore[no-untyped-def]
    call()


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
def test_spoilt_directions_are_noticed(name: str, spoil: Any, plant: Any) -> None:
    plant(noise, "direction", lambda right, *of, **named: spoil(right(*of, **named)))
    found = next(each for each in averages(Distribution.GAUSSIAN, 4_000_000) if each.name == name)
    assert abs(found.deviation) > 5, found


# Compiled kernels on disk ---------------------------------------------------------------------------------------------


def locator(function: Any) -> Any:
    return function._cache._impl.locator


def test_a_change_in_any_file_of_kernels_has_every_kernel_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = (numba_cpu._run, tiles.multiply, cnn_kernel._losses)
    stamps = {locator(kernel).get_source_stamp() for kernel in kernels}
    assert len(stamps) == 1
    for folder in kernel_cache.KERNELS:
        shutil.copytree(Path(kernel_cache.__file__).parents[1] / folder, tmp_path / folder)
    monkeypatch.setattr(kernel_cache, "PACKAGE", tmp_path)
    source = tmp_path / Path(tiles.__file__).relative_to(Path(kernel_cache.__file__).parents[1])
    for change in (b"", b"\n", b"\n\n"):
        source.write_bytes(source.read_bytes() + change)
        kernel_cache.digest.cache_clear()
        stamps.add(locator(kernels[0]).get_source_stamp())
    kernel_cache.digest.cache_clear()
    assert len(stamps) == 3  # the copy as it is, and two changes


def test_kernels_of_others_are_kept_as_numba_keeps_them() -> None:
    @numba.njit(cache=True)  # type: ignore[untyped-decorator]
    def twice(x: float) -> float:
        return 2 * x

    assert twice(1.5) == 3.0
    assert type(locator(twice)).__module__ == "numba.core.caching"
    assert type(locator(tiles.multiply)).__module__ == kernel_cache.__name__
