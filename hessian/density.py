"""Spectral density of H: outliers by Lanczos as exact atoms, the rest by stochastic quadrature, with an error band."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from decomfl_lab.errors import require, require_choice, require_finite_positive, require_int
from decomfl_lab.noise import Distribution
from hessian.counted import Counted
from hessian.estimate import Estimate, require_confidence
from hessian.krylov import Krylov
from hessian.operator import Operator
from hessian.probes import PROBE_DISTRIBUTIONS, probe
from hessian.quadrature import Function, quadrature

__all__ = ["SpectralDensity", "density_frame", "spectral_density"]

PROBES = 4
"""Stage of the probes of a density."""

CERTIFIED = 0.01
"""A Ritz value is an exact atom if its residual is at most this share of its magnitude."""

_POINTS = 1500
"""Values of λ in a frame, beside those around 0."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SpectralDensity:
    """The distribution of H's eigenvalues, ρ = Σ weight·δ(λ − node).

    Attributes:
        operator: The name of the matrix.
        d: The dimension of the matrix.
        nodes: The values of λ that carry weight, (n,).
        weights: Their shares of the d eigenvalues, (n,), summing to 1.
        gauss: The same, (n,), by Gauss's rule on fewer of the nodes: what differs is the quadrature's own error.
        exact: Whether a node is a Ritz value with a residual of at most 1 % of it, of weight 1/d, (n,).
        residuals: The residual of each Ritz value, (n,): an eigenvalue lies within that; NaN for the nodes of probes.
        probe: The number of the probe that a node comes from, (n,); -1 for the atoms of the Lanczos space.
        probes: The number of probes; 0 where the Lanczos vectors span everything.
        products: The number of products spent.
        lambda_min: The smallest Ritz value, or the smallest node where ``steps`` was 0.
        lambda_max: The largest of these.
        bandwidth: The σ of the Gaussians that ``curve`` puts in the atoms' places, in units of λ: the mean distance of
            neighbouring nodes where the mass is, which is as fine as quadrature of so few products sees.
        seed: The seed of everything random.
    """

    operator: str
    d: int
    nodes: Floats
    weights: Floats
    gauss: Floats
    exact: NDArray[np.bool_]
    residuals: Floats
    probe: NDArray[np.int64]
    probes: int
    products: int
    lambda_min: float
    lambda_max: float
    bandwidth: float
    seed: int

    def curve(
        self, grid: ArrayLike, bandwidth: float | None = None, confidence: float = 0.95
    ) -> tuple[Floats, Floats, Floats]:
        """The density broadened by Gaussians, with the band that the probes' disagreement makes.

            φ(t) = Σ weight·N(t; node, σ²)

        Args:
            grid: The values of λ to evaluate at, (g,).
            bandwidth: The σ, by default ``self.bandwidth``.
            confidence: The confidence of the band, pointwise (Student's t over probes); with one probe it is [0, ∞).

        Returns:
            (mean, low, high), each (g,); the mean integrates to 1.

        Source: Ghorbani, Krishnan and Xiao 2019, Section 2.
        """
        sigma = self.bandwidth if bandwidth is None else require_finite_positive("bandwidth", bandwidth)
        require_confidence(confidence)
        t = np.asarray(grid, dtype=np.float64)
        fixed, samples = self._split(np.stack([stats.norm.pdf(t, node, sigma) for node in self.nodes]), self.weights)
        if not len(samples):
            return fixed, fixed, fixed
        mean = fixed + samples.mean(axis=0)
        if len(samples) == 1:
            return mean, np.zeros_like(mean), np.full_like(mean, np.inf)
        quantile = stats.t.ppf(0.5 + confidence / 2, len(samples) - 1)
        half = quantile * samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
        return mean, np.maximum(mean - half, 0.0), mean + half

    def expectation(self, f: Function) -> Estimate:
        """Mean of f over all eigenvalues, Σ f(λ_i)/d, with its standard error.

        The error has two parts: over probes, and of the quadrature, as the mean distance of its two rules; the latter
        matters where f has a kink amid the spectrum, as |λ| has.
        """
        values = f(self.nodes)[:, None]
        fixed, samples = self._split(values, self.weights)
        if not len(samples):
            return Estimate(float(fixed[0]), 0.0, 0)
        sampled = Estimate.of(samples[:, 0].tolist(), float(fixed[0]))
        error = float(np.abs(samples - self._split(values, self.gauss)[1]).mean())
        return Estimate(sampled.value, math.hypot(sampled.stderr, error), sampled.samples)

    def kappas(self, confidence: float = 0.95) -> dict[str, tuple[float, float, float]]:
        """Every reading of κ (see ``EffectiveRank``), "signed", "positive" and "absolute", as (value, low, high).

        Each is a sum over the eigenvalues by a norm in [θ, θ + residual]: the interval holds all quotients. Sums of
        positive parts and of absolute values are at least those of the Ritz values (Cauchy's interlacing). A reading
        whose norm is not above 0 is left out.

        Raises:
            InputError: If there are no Lanczos atoms (``steps`` was 0).
        """
        atoms = self.probe < 0
        require(bool(atoms.any()), "steps", "be at least 1 for κ", 0)
        nodes, residuals = self.nodes[atoms], self.residuals[atoms]
        outer, top = int(np.abs(nodes).argmax()), int(nodes.argmax())
        readings: tuple[tuple[str, Function, float, float], ...] = (
            ("signed", lambda x: x, abs(nodes[outer]), residuals[outer]),
            ("positive", lambda x: np.maximum(x, 0.0), nodes[top], residuals[top]),
            ("absolute", np.abs, abs(nodes[outer]), residuals[outer]),
        )
        found = {}
        for name, f, theta, residual in readings:
            if theta > 0:
                mean = self.expectation(f)
                ends = [self.d * end / by for end in mean.interval(confidence) for by in (theta, theta + residual)]
                least = -math.inf if name == "signed" else float(f(nodes).sum() / (theta + residual))  # interlacing
                found[name] = (float(self.d * mean.value / theta), max(least, float(min(ends))), float(max(ends)))
        return found

    def wasserstein(self, eigenvalues: ArrayLike) -> float:
        """W₁ = ∫ |F(t) − G(t)| dt to the distribution of ``eigenvalues``, in units of λ.

        Compare it with the mean |λ|, which is the distance of all mass at zero.
        """
        return float(stats.wasserstein_distance(self.nodes, np.asarray(eigenvalues), self.weights))

    def _split(self, values: Floats, weights: Floats) -> tuple[Floats, Floats]:
        """Σ weight·value of the atoms, (g,), and of each probe as if it were the only one, (probes, g)."""
        weighted = weights[:, None] * values
        samples = [weighted[self.probe == i].sum(axis=0) * self.probes for i in range(self.probes)]
        return weighted[self.probe < 0].sum(axis=0), np.array(samples).reshape(self.probes, values.shape[1])


def spectral_density(
    operator: Operator,
    *,
    steps: int = 26,
    probes: int = 3,
    probe_steps: int = 8,
    seed: int,
    distribution: Distribution = Distribution.RADEMACHER,
) -> SpectralDensity:
    """The distribution of H's eigenvalues from steps + probes·probe_steps products.

    With Q the vectors of ``steps`` Lanczos steps, T = Q H Qᵀ and P = I − QᵀQ,

        tr f(H) ≈ tr f(T) + E[(Pz)ᵀ f(H) (Pz)]

    for every f: the eigenvalues of T become atoms of weight 1/d, each probe Pz an averaged Gauss quadrature. Without
    the first part (``steps=0``) it is stochastic Lanczos quadrature as usual, which puts the outliers, on which tr(H)
    hangs, at random weights.

    Args:
        operator: The matrix H.
        steps: The number of Lanczos steps that take out the outliers; 0 for plain stochastic Lanczos quadrature.
        probes: The number of random vectors for the rest, at least 1; 2 or more give an error band.
        probe_steps: The number of products a probe, at least 1.
        seed: The seed of everything random, 0..2**64-1.
        distribution: The distribution of the probes, Rademacher or Gaussian.

    Raises:
        InputError: If an argument breaks a rule or a product is not finite.

    Source: Ghorbani, Krishnan and Xiao 2019 (``steps=0``, with Gauss's rule); Chen and Hallman 2023.
    """
    require_int("steps", steps, 0)
    require_int("probes", probes, 1)
    require_int("probe_steps", probe_steps, 1)
    require_int("seed", seed, 0, 2**64 - 1)
    require_choice("distribution", distribution, PROBE_DISTRIBUTIONS)
    counted = Counted(operator)
    krylov = Krylov(counted, seed)
    while krylov.steps < steps and krylov.following is not None:
        krylov.step()
    k = krylov.steps
    if krylov.following is None:
        probes = 0
    ritz = krylov.result()
    atoms = ritz.ritz_values.cpu().numpy()
    each = np.full(k, 1 / counted.d)
    nodes, weights, gauss, sources = [atoms], [each], [each], [np.full(k, -1)]
    for i in range(probes):
        rule = quadrature(counted, krylov.complement(probe(counted, seed, PROBES, i, distribution)), probe_steps)
        nodes.append(rule.nodes)
        share = (1 - k / counted.d) / probes
        weights.append(rule.averaged / rule.averaged.sum() * share)
        gauss.append(rule.gauss / rule.gauss.sum() * share)
        sources.append(np.full(len(rule.nodes), i))
    at = np.concatenate(nodes)
    residuals = ritz.ritz_residuals.cpu().numpy()
    certified = residuals <= CERTIFIED * np.abs(atoms)
    outer = atoms if k else at
    return SpectralDensity(
        operator=counted.name,
        d=counted.d,
        nodes=at,
        weights=np.concatenate(weights),
        gauss=np.concatenate(gauss),
        exact=np.concatenate([certified, np.zeros(len(at) - k, dtype=bool)]),
        residuals=np.concatenate([residuals, np.full(len(at) - k, np.nan)]),
        probe=np.concatenate(sources),
        probes=probes,
        products=counted.products,
        lambda_min=float(outer.min()),
        lambda_max=float(outer.max()),
        bandwidth=_bandwidth(nodes, weights),
        seed=seed,
    )


def density_frame(density: SpectralDensity, confidence: float = 0.95) -> pd.DataFrame:
    """The density with its band: columns value (λ), density, low and high, finer around 0 where the mass is."""
    reach = 5 * density.bandwidth
    whole = np.linspace(density.lambda_min - reach, density.lambda_max + reach, _POINTS)
    grid = np.unique(np.concatenate([whole, np.linspace(-2 * reach, 2 * reach, _POINTS // 3)]))
    mean, low, high = density.curve(grid, confidence=confidence)
    return pd.DataFrame({"value": grid, "density": mean, "low": low, "high": high})


def _bandwidth(nodes: list[Floats], weights: list[Floats]) -> float:
    """The mean gap between neighbouring nodes of a probe, each gap by the mass at its ends."""
    gaps, masses = [], []
    for at, weight in zip(nodes[1:] or nodes, weights[1:] or weights, strict=True):
        order = np.argsort(at)
        gaps.append(np.diff(at[order]))
        masses.append((weight[order][1:] + weight[order][:-1]) / 2)
    gap, mass = np.concatenate(gaps), np.concatenate(masses)
    spread = max(float(np.abs(at).max(initial=0.0)) for at in nodes)
    mean = float(gap @ mass / mass.sum()) if mass.sum() > 0 else 0.0
    return max(mean, 1e-6 * spread) or 1.0
