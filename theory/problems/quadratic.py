"""Quadratic losses of heterogeneous clients, and what DeComFL does to them in expectation, exactly.

For f_i(x; ξ) = ½ xᵀHx − (b_i + s)ᵀx every step is linear in x, so E xxᵀ after a step is a linear function of E xxᵀ
before it; and for the distributions of z used here the trace of each block of an eigenvalue group follows from the
traces of the others. A step costs O(groups), whatever d is.

*Proof.* H is common, so the mean x̄ of the sampled clients' models moves as one model: x̄⁺ = x̄ − η(Zv + e),
v = Hx̄ − u − s̄, with u the mean over C of b_i, constant during a round, E uuᵀ = (φ/m)(1/M) Σ b_i b_iᵀ, and
e = (1/P) Σ_p z_p ½μz_pᵀHz_p. With V = E vvᵀ and C = E x̄uᵀ (0 when a round begins)

    E x̄⁺x̄⁺ᵀ = E x̄x̄ᵀ − η(E x̄vᵀ + E vx̄ᵀ) + η²[(1 − 1/P)V + (1/P) E zzᵀVzzᵀ + (μ²/4P) E (zᵀHz)² zzᵀ],
    C⁺ = C − η(HC − E uuᵀ),

for E zzᵀHz = 0 and what is odd in z has mean 0. E zzᵀVzzᵀ is (tr V) I + 2V (gaussian), d/(d + 2) times it (sphere),
less 2 diag V (rademacher); E (zᵀHz)² zzᵀ is (T₁² + 2T₂)I + 4T₁H + 8H² (gaussian, T_n = tr Hⁿ), d²/((d + 2)(d + 4))
times it (sphere), T₁² I (rademacher, H diagonal). Of each, the traces of the blocks of H's eigenspaces follow from
those of V alone. ∎

*With momentum*, and for central differences (e = 0): let w = Hx − u − s̄ be that gradient, and v the momentum. e is odd
in z and so not correlated with Zw, x or v, hence

    E v⁺v⁺ᵀ = β²E vvᵀ + β(E vwᵀ + E wvᵀ) + E ZwwᵀZ + E eeᵀ,   E xv⁺ᵀ = βE xvᵀ + E xwᵀ,   E v⁺uᵀ = βE vuᵀ + E wuᵀ.

E x⁺x⁺ᵀ, E x⁺v⁺ᵀ and E x⁺uᵀ follow from x⁺ = x − ηv⁺, and traces by groups are closed under it, as before. u is new in
every round, so E xuᵀ = E vuᵀ = 0 where one begins. ∎
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import is_number, require, require_possible
from theory.notation.setting import Setting
from theory.problems.spectrum import Spectrum

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """f_i(x; ξ) = ½ xᵀHx − (b_i + s)ᵀx with Σ_i b_i = 0 and E s = 0; so f(x) = ½ xᵀHx and f* = 0.

    b_i is +b for even and −b for odd i (0 for the last of an odd number of clients), s is ±s₀ by a fair coin at every
    step of every client. H is diagonal; x_0, b and s₀ have one coordinate in each group that is not 0, the group's
    first: sums of squares by groups say everything.
    """

    spectrum: Spectrum  # spectrum of H
    start: tuple[float, ...]  # ‖x_0‖² in each group. [X²]
    noise: tuple[float, ...]  # ‖s₀‖² in each group; their sum is σ². [F²/X²]
    dissimilarity: tuple[float, ...]  # ‖b‖² in each group; their sum is σ_G². [F²/X²]

    def __post_init__(self) -> None:
        for name in ("start", "noise", "dissimilarity"):
            squares = getattr(self, name)
            require(len(squares) == len(self.spectrum.values), name, "be one for each group", squares)
            for square in squares:
                require(math.isfinite(square) and square >= 0, name, "be finite numbers of at least 0", square)

    @classmethod
    def of(
        cls,
        spectrum: Spectrum,
        *,
        D: float = 1.0,
        sigma: float = 0.0,
        sigma_G: float = 0.0,
        start: Sequence[float] | None = None,
        noise: Sequence[float] | None = None,
        dissimilarity: Sequence[float] | None = None,
    ) -> "Quadratic":
        """The quadratic with these constants.

        Args:
            spectrum: Spectrum of H.
            D: f(x_0) − f*. [F]
            sigma: Standard deviation of the stochastic gradients. [F/X]
            sigma_G: Dissimilarity of the clients' gradients. [F/X]
            start: How D is shared among the groups, in any scale; None for all in the first.
            noise: How σ² is; None for all in the first.
            dissimilarity: How σ_G² is; None for all in the first.

        Raises:
            InputError: If shares are negative, all 0 or not one for each group, or if D is put where H is 0.
        """
        shares, groups = {}, len(spectrum.values)
        for name, given in (("start", start), ("noise", noise), ("dissimilarity", dissimilarity)):
            parts = [1.0] + [0.0] * (groups - 1) if given is None else [float(part) for part in given]
            require(len(parts) == groups, name, f"be one share for each of {groups} groups", given)
            require(min(parts) >= 0 and sum(parts) > 0, name, "be at least 0 and not all 0", given)
            shares[name] = [part / sum(parts) for part in parts]
        heights = [(D * share, value) for share, value in zip(shares["start"], spectrum.values, strict=True)]
        require(all(value > 0 or height == 0 for height, value in heights), "start", "be 0 where H is 0", start)
        return cls(
            spectrum,
            tuple(2 * height / value if height else 0.0 for height, value in heights),  # of ½λx² = height
            tuple(sigma**2 * share for share in shares["noise"]),
            tuple(sigma_G**2 * share for share in shares["dissimilarity"]),
        )

    @property
    def d(self) -> int:
        """Parameters."""
        return self.spectrum.d

    @property
    def L(self) -> float:
        """Every f_i(·; ξ) is L-smooth, in F/X²."""
        return self.spectrum.L

    @cached_property
    def D(self) -> float:
        """f(x_0) − f*, in F."""
        return 0.5 * math.fsum(value * square for value, square in zip(self.spectrum.values, self.start, strict=True))

    @cached_property
    def gradient2(self) -> float:
        """‖∇f(x_0)‖², in F²/X²."""
        return math.fsum(value**2 * square for value, square in zip(self.spectrum.values, self.start, strict=True))

    @property
    def sigma(self) -> float:
        """√E‖s‖², in F/X."""
        return math.sqrt(math.fsum(self.noise))

    @property
    def sigma_G(self) -> float:
        """max_i ‖b_i‖, in F/X."""
        return math.sqrt(math.fsum(self.dissimilarity))

    def covariance(self, M: int) -> Floats:
        """Traces of (1/M) Σ b_i b_iᵀ in each group, shape (groups,): ‖b‖², less 1/M of it where M is odd."""
        return np.array(self.dissimilarity) * (M - M % 2) / M

    def setting(
        self,
        *,
        eta: float | None = None,
        m: int = 1,
        M: int | None = None,
        P: int = 1,
        K: int = 1,
        R: int = 1,
        mu: float = 0.0,
        distribution: str = "gaussian",
        replacement: bool = False,
        G: float | None = None,
        beta: float = 0.0,
        central: bool = False,
    ) -> Setting:
        """The constants of a run on this problem: d, L, D, κ, σ, σ_G, α, ‖x_0‖² are the problem's own, and H₃ = 0.

        α is that of the PL inequality, the smallest eigenvalue above 0.
        """
        return Setting(
            d=self.d, L=self.L, D=self.D, kappa=self.spectrum.kappa, sigma=self.sigma, sigma_G=self.sigma_G,
            eta=eta, m=m, M=M, P=P, K=K, R=R, mu=mu, distribution=distribution, replacement=replacement, G=G, H3=0.0,
            alpha=min(value for value in self.spectrum.values if value > 0), Q=math.fsum(self.start), beta=beta,
            central=central,
        )  # fmt: skip


def quadratic(
    *, d: int, kappa: float, L: float = 1.0, D: float = 1.0, sigma: float = 0.0, sigma_G: float = 0.0
) -> Quadratic:
    """The quadratic of effective rank κ whose Hessian has one eigenvalue L, the others alike: as cheap for d = 10⁹.

    x_0, the noise of the gradients and the clients' differences lie along the eigenvector of L, where they do most.

    Args:
        d: Number of parameters.
        kappa: Effective rank tr(H)/L, in 1..d.
        L: Largest eigenvalue, > 0. [F/X²]
        D: f(x_0) − f*. [F]
        sigma: Standard deviation of the stochastic gradients. [F/X]
        sigma_G: Dissimilarity of the clients' gradients. [F/X]

    Raises:
        InputError: That names the constant, the rule and the value.
    """
    for name, number in (("D", D), ("sigma", sigma), ("sigma_G", sigma_G)):
        require(is_number(number) and number >= 0, name, "be a finite number of at least 0", number)
    return Quadratic.of(Spectrum.two_level(d, kappa, L), D=D, sigma=sigma, sigma_G=sigma_G)


@dataclass(frozen=True)
class Trajectory:
    """What a run does in expectation."""

    f: Floats  # E f(x_r) − f*, shape (R + 1,). [F]
    gradient2: Floats  # E‖∇f(x_r)‖², shape (R + 1,). [F²/X²]
    distance2: Floats  # E‖x_r − x*‖², x* the nearest minimiser, shape (R + 1,). [X²]

    @property
    def average(self) -> float:
        """(1/R) Σ_{r<R} E‖∇f(x_r)‖²."""
        return float(self.gradient2[:-1].mean())


def spread(quadratic: Quadratic, setting: Setting, V: Floats) -> Floats:
    """E Z V Z, Z = (1/P) Σ_p z_p z_pᵀ, in each group: (1 − 1/P) V + (1/P) E[z zᵀV z zᵀ].

    With V's trace T, E[z zᵀV z zᵀ] is T·I + 2V (gaussian), d/(d + 2) times it (sphere), T·I + 2V − 2 diag V
    (rademacher). Of the setting P and the distribution of z are read. V, and what is returned, has the traces of a
    symmetric matrix's blocks, (groups,) or, for several matrices, (groups, n).
    """
    n, d, P = quadratic.spectrum.multiplicities, quadratic.d, setting.P
    everywhere = np.multiply.outer(n, V.sum(axis=0))
    fourth = everywhere if setting.distribution == "rademacher" else everywhere + 2 * V
    moved: Floats = (1 - 1 / P) * V + (d / (d + 2) if setting.distribution == "sphere" else 1.0) / P * fourth
    return moved


def remainder(quadratic: Quadratic, setting: Setting) -> Floats:
    """E e eᵀ in each group, shape (groups,), for e = (1/P) Σ_p z_p ½ μ z_pᵀHz_p, what forward differences add to Zv.

        E e eᵀ = (μ²/4P) E[(zᵀHz)² z zᵀ];   with T_n = tr Hⁿ the last factor is
        (T₁² + 2T₂)I + 4T₁H + 8H² (gaussian), d²/((d + 2)(d + 4)) times it (sphere), T₁²·I (rademacher).

    E[z zᵀHz] = 0, so directions of different p add nothing. E e = 0, and e is not correlated with Zv: products are odd.
    Central differences have no e.
    """
    if setting.central:
        return np.zeros(len(quadratic.spectrum.values))
    H, n, d = quadratic.spectrum.eigenvalues, quadratic.spectrum.multiplicities, quadratic.d
    T1, T2 = quadratic.spectrum.power_sum(1), quadratic.spectrum.power_sum(2)
    if setting.distribution == "rademacher":
        sixth = n * T1**2
    else:
        sixth = n * (T1**2 + 2 * T2 + 4 * T1 * H + 8 * H**2)
        sixth = sixth * (d**2 / ((d + 2) * (d + 4)) if setting.distribution == "sphere" else 1.0)
    return setting.mu**2 / (4 * setting.P) * sixth


@dataclass(frozen=True)
class _Moments:
    """Traces of second moments by groups, (groups, n + 1) float64: linear in n unknowns and, last, a constant."""

    square: Floats  # E xxᵀ
    mixed: Floats  # E xvᵀ, v the momentum
    momentum: Floats  # E vvᵀ
    cross: Floats  # E xuᵀ, u constant during the round
    moving: Floats  # E vuᵀ

    def step(self, quadratic: Quadratic, setting: Setting, drive: Floats, noise: Floats) -> "_Moments":
        """After a local step v⁺ = βv + ĝ, x⁺ = x − ηv⁺, ĝ = Zw + e, w = Hx − u − s.

            E x⁺x⁺ᵀ = E xxᵀ − η(E xv⁺ᵀ + E v⁺xᵀ) + η² E v⁺v⁺ᵀ,     E xv⁺ᵀ = β E xvᵀ + E xwᵀ,
            E v⁺v⁺ᵀ = β² E vvᵀ + β(E vwᵀ + E wvᵀ) + E ZVZ + E e eᵀ,  V = E wwᵀ,     E v⁺uᵀ = β E vuᵀ + E wuᵀ

        ``drive`` has the traces of E uuᵀ and ``noise`` those of E ssᵀ, s new at every step, both (groups, n + 1).
        """
        setting.require("eta")
        assert setting.eta is not None
        eta, beta, H = setting.eta, setting.beta, quadratic.spectrum.eigenvalues[:, None]
        second = spread(quadratic, setting, H**2 * self.square - 2 * H * self.cross + drive + noise)
        second[:, -1] += remainder(quadratic, setting)
        along, moving = H * self.square - self.cross, H * self.cross - drive  # E xwᵀ and E wuᵀ, then with v⁺ for w
        if beta:  # without it v is of no account, and may be infinite
            second = second + beta**2 * self.momentum + 2 * beta * (H * self.mixed - self.moving)
            along, moving = along + beta * self.mixed, moving + beta * self.moving
        square = self.square - 2 * eta * along + eta**2 * second
        return _Moments(square, along - eta * second, second, self.cross - eta * moving, moving)


def round_map(quadratic: Quadratic, setting: Setting) -> Floats:
    """What a round does to the traces by groups of E xxᵀ and, with momentum v, of E xvᵀ and E vvᵀ: an affine map A.

    All clients share the directions, the P directions of a step share its mini-batch; μ = 0 is the limit of both kinds
    of differences. Momentum is kept over local steps and rounds. With common H the mean of the sampled clients' models
    moves as one model under the mean of their b_i and of their noise, whose second moments are (φ/m) (1/M) Σ b_i b_iᵀ
    and σ²/m.

    Args:
        quadratic: The problem.
        setting: η, β, m, M, P, K, μ, central, distribution and replacement; d must be the problem's, no other constant
            is read.

    Returns:
        Shape (n + 1, n + 1), for n traces and, last, a 1.

    Raises:
        InputError: If η was not given or d is another.
    """
    require(setting.d == quadratic.d, "d", f"be the problem's {quadratic.d}", setting.d)
    groups = len(quadratic.spectrum.values)
    parts = 3 if setting.beta else 1
    unknown = parts * groups
    square, mixed, momentum = (np.eye(groups, unknown + 1, part * groups) for part in range(3))
    drive, noise = np.zeros_like(square), np.zeros_like(square)
    drive[:, -1] = setting.phi / setting.m * quadratic.covariance(setting.clients)
    noise[:, -1] = np.array(quadratic.noise) / setting.m
    moments = _Moments(square, mixed, momentum, np.zeros_like(square), np.zeros_like(square))
    for _ in range(setting.K):
        moments = moments.step(quadratic, setting, drive, noise)
    rows = [moments.square, moments.mixed, moments.momentum][:parts]
    return np.vstack([*rows, np.eye(1, unknown + 1, unknown)])


def expected(quadratic: Quadratic, setting: Setting) -> Trajectory:
    """E f(x_r) − f*, E‖∇f(x_r)‖² and E‖x_r − x*‖², r = 0..R, under DeComFL: exact, without sampling.

    Of the setting R is read and what ``round_map`` reads, whose first 2^j powers at once give the next 2^j.

    Raises:
        InputError: If η was not given or d is another.
    """
    groups = len(quadratic.spectrum.values)
    require_possible("R", setting.R, memory=8.0 * groups * setting.R)
    with np.errstate(over="ignore", invalid="ignore"):
        power = round_map(quadratic, setting)
        # A column a round.
        traces = np.hstack([quadratic.start, np.zeros(len(power) - groups - 1), 1.0])[:, None]
        while traces.shape[1] <= setting.R:
            traces = np.hstack([traces, power @ traces])
            power = power @ power
        traces = traces[:groups, : setting.R + 1]
        H = quadratic.spectrum.eigenvalues
        sums = np.stack([0.5 * H @ traces, H**2 @ traces, (H > 0) @ traces])
    sums[~np.isfinite(sums)] = math.inf  # diverged
    return Trajectory(*sums)


@dataclass(frozen=True)
class LocalStep:
    """A local step of a client that set out from x_0, in expectation over the steps before it."""

    distance2: float  # E‖x_{i,0}^k − x_0‖², in X²
    gradients: Floats  # traces of the blocks of E vvᵀ, v = ∇f_i(x_{i,0}^k), shape (groups,). [F²/X²]


def local_steps(quadratic: Quadratic, setting: Setting, client: int | None = 0) -> list[LocalStep]:
    """The K local steps of a client's first round, exactly; of ``client`` None the means over all M clients.

    y = x_i^k − x_0 moves by ``_Moments`` from 0 under the constant b_i − Hx_0; over all clients that has the second
    moment (1/M) Σ b_i b_iᵀ + ∇f(x_0)∇f(x_0)ᵀ.

    Raises:
        InputError: If d is another, or η was not given for K > 1.
    """
    require(setting.d == quadratic.d, "d", f"be the problem's {quadratic.d}", setting.d)
    H = quadratic.spectrum.eigenvalues
    gradient = H * np.sqrt(quadratic.start)
    if client is None:
        drive = gradient**2 + quadratic.covariance(setting.clients)
    else:
        drive = (gradient - signs(setting.clients)[client] * np.sqrt(quadratic.dissimilarity)) ** 2
    drive, noise = drive[:, None], np.array(quadratic.noise)[:, None]
    moments = _Moments(*[np.zeros_like(drive)] * 5)
    steps = []
    for k in range(setting.K):
        if k:
            moments = moments.step(quadratic, setting, drive, noise)
        gradients = H**2 * moments.square[:, 0] - 2 * H * moments.cross[:, 0] + drive[:, 0]
        steps.append(LocalStep(float(moments.square.sum()), gradients))
    return steps


def signs(M: int) -> Floats:
    """The share of b that each of M clients has: 1, −1, 1, …, and 0 for the last of an odd number; they sum to 0."""
    shares = np.where(np.arange(M) % 2 == 0, 1.0, -1.0)
    if M % 2:
        shares[-1] = 0.0
    return shares
