"""Splits: which client holds which training examples. All clients hold equally many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require_choice, require_finite_positive, require_int

__all__ = ["SPLITS", "class_shares", "split", "split_dirichlet", "split_iid"]

Indices = NDArray[np.int64]
SPLITS = ("iid", "dirichlet", "dirichlet-total")


def _generator(seed: int, M: int, n: int) -> np.random.Generator:
    require_int("clients M", M, 1)
    require_int("seed", seed, 0, 2**64 - 1)
    if n < M:
        raise InputError(f"clients M must be at most the {n} training examples, one each, got {M}")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(4,)))


def split_iid(labels: Indices, M: int, seed: int) -> list[Indices]:
    """A random permutation cut into M parts of floor(N/M); the remainder is left out.

    Args:
        labels: (N,) class of each example (only their number matters here).
        M: Clients.
        seed: Of the permutation.

    Returns:
        M index arrays, disjoint, each of floor(N/M) elements.

    Raises:
        InputError: If M is not in 1..N.
    """
    n = len(labels)
    order = _generator(seed, M, n).permutation(n)
    size = n // M
    return [order[i * size : (i + 1) * size].astype(np.int64) for i in range(M)]


def split_dirichlet(labels: Indices, M: int, alpha: float, seed: int, *, total: bool = False) -> list[Indices]:
    """Label skew: client i's class shares are q_i ~ Dir(α·1), or Dir(α·p) with ``total``.

    With 1 the all-ones vector over the C classes, Dir(α·1) is the usual reading of "Dirichlet α". The
    authors' code (for its text tasks) multiplies α by the class frequencies p instead, which sum to 1: total
    concentration α, so that its α = 1 with 10 equal classes is Dir(0.1·1), far more skewed. ``total`` gives
    that reading.

    Equal sizes and finite classes pull the shares: clients, in random order, draw their floor(N/M) examples
    one class count at a time, multinomially from q_i restricted to the classes that are not used up. The
    first clients follow q_i exactly; the last take more of what is left.

    Args:
        labels: (N,) class of each example.
        M: Clients.
        alpha: α > 0.
        seed: Of the shares, the order and the choice of examples.
        total: Whether α is the total concentration (the authors' reading).

    Returns:
        M index arrays, disjoint, each of floor(N/M) elements.

    Raises:
        InputError: If M is not in 1..N, or α is not a finite positive number.
    """
    require_finite_positive("alpha", alpha)
    n = len(labels)
    rng = _generator(seed, M, n)
    classes, counts = np.unique(labels, return_counts=True)
    left = counts.copy()
    piles = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    concentration = alpha * counts / n if total else np.full(len(classes), alpha)
    shares = rng.dirichlet(concentration, size=M)
    size = n // M
    parts: list[Indices] = [np.empty(0, np.int64)] * M
    for i in rng.permutation(M):
        taken = np.zeros(len(classes), np.int64)
        while taken.sum() < size:
            open_ = left > taken
            weights = np.where(open_, shares[i], 0.0)
            if weights.sum() <= 0.0:  # all classes of this client are used up: what is left, evenly
                weights = (left - taken).astype(float)
            drawn = rng.multinomial(size - taken.sum(), weights / weights.sum())
            taken = np.minimum(taken + drawn, left)
        parts[i] = np.concatenate([pile[a - t : a] for pile, a, t in zip(piles, left, taken, strict=True)]).astype(
            np.int64
        )
        left = left - taken
    return [rng.permutation(part) for part in parts]


def split(name: str, labels: Indices, M: int, seed: int, *, alpha: float = 1.0) -> list[Indices]:
    """The split called ``name``: iid, dirichlet (Dir(α·1)) or dirichlet-total (Dir(α·p))."""
    require_choice("split", name, SPLITS)
    if name == "iid":
        return split_iid(labels, M, seed)
    return split_dirichlet(labels, M, alpha, seed, total=name == "dirichlet-total")


def class_shares(labels: Indices, parts: list[Indices], classes: int) -> NDArray[np.float64]:
    """(M, C): share of each class in each part."""
    return np.stack([np.bincount(labels[part], minlength=classes) / len(part) for part in parts])
