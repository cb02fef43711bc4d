"""Spectral density of H: single eigenvalues as exact atoms, all others by stochastic quadrature, with an error band."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import known_options, plural, require_finite_positive, require_int
from decomfl_lab.objectives.batch_loss import LossFunction
from hessian.estimate import Estimate, require_confidence
from hessian.operators.operator import Counted
from hessian.operators.options import CurvatureKeywords
from hessian.operators.probes import probe
from hessian.operators.selection import Source, curvature
from hessian.parts import PARTS
from hessian.readings import Reading, Reported, reading_of
from hessian.spectrum.lanczos import band, require_room

PROBES = 4  # stage of the probes of a density

CERTIFIED = 0.01  # a Ritz value is an eigenvalue if its residual is at most this share of its magnitude

CLUSTERED = 1e-4
"""An eigenvalue is taken for several if the probes see a weight there that one has with no larger probability."""

_POINTS = 1500  # values of λ in a frame, beside those around 0

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]


@dataclass(frozen=True, kw_only=True, repr=False)
class SpectralDensity(Reported):
    """The distribution of H's eigenvalues, ρ = Σ weight·δ(λ − node)."""

    in_json = ("weights", "samples")

    operator: str  # the name of the matrix
    d: int  # the dimension of the matrix
    nodes: Floats  # the Ritz values, ascending, (n,)
    residuals: Floats  # the residual of each, (n,): an eigenvalue lies within that
    # whether a node is one eigenvalue, (n,): its residual is at most 1 % of it, and its weight that of one
    exact: NDArray[np.bool_]
    seen: Floats  # the share of the eigenvalues at each node as each probe sees it, (probes, n), by Gauss's rule
    # the nodes of the same rule from one product a probe fewer: what differs is the rule's own error
    coarse_nodes: Floats
    coarse: Floats  # the shares of the eigenvalues at these, (probes, fewer)
    products: int  # the number of products spent
    # the σ of the Gaussians that ``curve`` puts in the atoms' places, in units of λ: the mean distance of neighbouring
    # nodes of a probe where the mass is, which is as fine as so few products see
    bandwidth: float
    seed: int  # the seed of everything random

    @property
    def samples(self) -> Floats:
        """The weights of the nodes by each probe, (probes, n): 1/d where a node is exact, a probe's share elsewhere.

        Each row sums to 1; there is only one row, and no sampling, where the nodes are all d eigenvalues.
        """
        if self.exact.all():
            return np.full((1, len(self.nodes)), 1 / len(self.nodes))
        # What the exact nodes leave of the weight 1 is shared among the others as each probe sees them.
        rest = np.where(self.exact, 0.0, self.seen)
        share = 1 - self.exact.sum() / self.d
        weights: Floats = np.where(self.exact, 1 / self.d, rest * share / rest.sum(axis=1, keepdims=True))
        return weights

    @property
    def weights(self) -> Floats:
        """The share of the d eigenvalues at each node, (n,), summing to 1."""
        mean: Floats = self.samples.mean(axis=0)
        return mean

    @property
    def lambda_min(self) -> float:
        """The smallest Ritz value: an eigenvalue is at most that."""
        return float(self.nodes[0])

    @property
    def lambda_max(self) -> float:
        """The largest Ritz value: an eigenvalue is at least that."""
        return float(self.nodes[-1])

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
        samples = self.samples @ np.stack([stats.norm.pdf(t, node, sigma) for node in self.nodes])
        mean = samples.mean(axis=0)
        if self.exact.all():
            return mean, mean, mean
        # A single probe does not say how far another would be from it.
        if len(samples) == 1:
            return mean, np.zeros_like(mean), np.full_like(mean, np.inf)
        quantile = stats.t.ppf(0.5 + confidence / 2, len(samples) - 1)
        half = quantile * samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
        return mean, np.maximum(mean - half, 0.0), mean + half

    def expectation(self, f: Function) -> Estimate:
        """Mean of f over all eigenvalues, Σ f(λ_i)/d, with its standard error.

        The error has two parts: over probes, and of the quadrature, as what the last product of each probe changed; the
        latter matters where f has a kink amid the spectrum, as |λ| has.
        """
        values = self.samples @ f(self.nodes)
        if self.exact.all():
            return Estimate(float(values[0]), 0.0, 0)
        sampled = Estimate.of(values.tolist())
        # The quadrature's own error: what one product a probe fewer would have given, by the same probes.
        error = float(np.abs(self.seen @ f(self.nodes) - self.coarse @ f(self.coarse_nodes)).mean())
        return Estimate(sampled.value, math.hypot(sampled.stderr, error), sampled.samples)

    def kappas(self, confidence: float = 0.95) -> dict[str, tuple[float, float, float]]:
        """Every reading of κ (see ``EffectiveRank``), "signed", "positive" and "absolute", as (value, low, high).

        Each is a sum over the eigenvalues by a norm in [θ, θ + residual]: the interval holds all quotients. Sums of
        positive parts and of absolute values are at least those of the Ritz values (Cauchy's interlacing). A reading
        whose norm is not above 0 is left out.
        """
        nodes, by_part = self.nodes, {}
        for name, part in PARTS.items():
            outer = int((nodes if part.which == "largest" else np.abs(nodes)).argmax())
            theta, residual = abs(part.of(nodes[outer])), self.residuals[outer]
            if theta > 0:
                mean = self.expectation(part.of)
                # All quotients of the ends of the sum and of the norm, since the sum may have either sign.
                ends = [self.d * end / by for end in mean.interval(confidence) for by in (theta, theta + residual)]
                low = float(min(ends))
                if name != "signed":  # interlacing
                    low = max(low, float(part.of(nodes).sum() / (theta + residual)))
                by_part[name] = (float(self.d * mean.value / theta), low, float(max(ends)))
        return by_part

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """κ of each part, with 95 %; see ``Reported``."""
        spent = f"{plural(self.products, 'product')}, {plural(len(self.seen), 'probe')}, seed {self.seed}"
        ends = f"{len(self.nodes)} Ritz values in {self.lambda_min:.4g} .. {self.lambda_max:.4g}"
        title = f"spectral density of the {self.operator}, d = {self.d:,}: {ends}; {spent}"
        return title, [reading_of(part, value, interval) for part, (value, *interval) in self.kappas().items()], ""

    def wasserstein(self, eigenvalues: ArrayLike) -> float:
        """W₁ = ∫ |F(t) − G(t)| dt to the distribution of ``eigenvalues``, in units of λ.

        Compare it with the mean |λ|, which is the distance of all mass at zero.
        """
        return float(stats.wasserstein_distance(self.nodes, np.asarray(eigenvalues), self.weights))


@known_options
def spectral_density(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    products: int = 50,
    probes: int = 3,
    seed: int = 0,
    **options: Unpack[CurvatureKeywords],
) -> SpectralDensity:
    """The distribution of H's eigenvalues by Lanczos from several random vectors at once.

    The products H^j z_p of all probes span one space. With Q its orthonormal basis, T = Q H Qᵀ and T s_i = θ_i s_i, the
    Ritz values θ_i are nodes, and each probe sees the weights

        w_{pi} = (s_iᵀ Q z_p)²/‖z_p‖²,    Σ_i w_{pi} f(θ_i) ≈ z_pᵀ f(H) z_p/‖z_p‖²

    which is Gauss's rule, exact for polynomials f of degree 2·products/probes − 1 at least. A θ_i that has converged is
    one eigenvalue of weight 1/d, which no probe needs to measure, unless the probes' weight there, d Σ_p w_{pi} ~ χ² of
    as many degrees of freedom as there are probes, is that of several equal ones (a layer of C linear outputs with a
    square loss has C-fold eigenvalues).

    Args:
        model: See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``.
        products: The number of products, at least 1 a probe; fewer are made where they span an invariant space.
        probes: The number of random vectors; 2 or more give an error band.
        seed: The seed of everything random, 0..2**64-1.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, or the device has no room for the basis.

    Source: Ghorbani, Krishnan and Xiao 2019 (one probe, without exact atoms); band Lanczos: Ruhe 1979.
    """
    require_int("probes", probes, 1)
    require_int("products", products, probes)
    require_int("seed", seed, 0, 2**64 - 1)
    operator = curvature(model, loss, data, **options)
    require_room(operator, products, 2 * probes + 3, name="products")
    counted, d = Counted(operator), operator.d
    T, starts, residual = band(counted, [probe(counted, seed, PROBES, p) for p in range(probes)], products)
    nodes, s = np.linalg.eigh(T)
    # ‖Hu_i − θ_i u_i‖² = s_iᵀ Gram s_i. Rounding may make it a little negative.
    residuals = np.sqrt(np.einsum("ij,ik,jk->k", residual, s, s).clip(0.0))
    seen = (starts @ s) ** 2
    # Of an invariant space all is known, and no rule has an error.
    fewer = max(len(T) - probes, min(len(T), probes)) if residual.any() else len(T)
    coarse_nodes, coarse = np.linalg.eigh(T[:fewer, :fewer])
    # One eigenvalue is seen with d Σ_p w_p ~ χ². More than its far quantile is the weight of several.
    one = d * seen.sum(axis=0) <= stats.chi2.isf(CLUSTERED, probes)
    exact = (residuals <= CERTIFIED * np.abs(nodes)) & one
    # d nodes are all eigenvalues. Fewer cannot all be exact: the one of the largest weight then stands for the rest.
    if len(nodes) == d:
        exact[:] = True
    elif exact.all():
        exact[seen.sum(axis=0).argmax()] = False
    # The mean gap between neighbouring nodes that are not exact, weighted by the mass at its ends. All probes together
    # have ``probes`` times as many nodes as one, so a probe's own gaps are as many times as wide.
    gaps = np.diff(nodes)
    masses = (seen[:, 1:] + seen[:, :-1]).mean(axis=0) * ~(exact[1:] | exact[:-1])
    mean = float(gaps @ masses / masses.sum()) if masses.any() else 0.0
    return SpectralDensity(
        operator=counted.name,
        d=d,
        nodes=nodes,
        residuals=residuals,
        exact=exact,
        seen=seen,
        coarse_nodes=coarse_nodes,
        coarse=(starts[:, :fewer] @ coarse) ** 2,
        products=counted.products,
        bandwidth=max(probes * mean, 1e-6 * float(np.abs(nodes).max())) or 1.0,
        seed=seed,
    )


def density_frame(density: SpectralDensity, confidence: float = 0.95) -> pd.DataFrame:
    """The density with its band: columns value (λ), density, low and high, finer around 0 where the mass is."""
    reach = 5 * density.bandwidth
    whole = np.linspace(density.lambda_min - reach, density.lambda_max + reach, _POINTS)
    # A third as many values more near 0, where most eigenvalues of a network lie.
    grid = np.unique(np.concatenate([whole, np.linspace(-2 * reach, 2 * reach, _POINTS // 3)]))
    mean, low, high = density.curve(grid, confidence=confidence)
    return pd.DataFrame({"value": grid, "density": mean, "low": low, "high": high})
