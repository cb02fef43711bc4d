"""The main text and the appendices before the proofs: displays, the communication of Table 1, claims with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Final

import numpy as np
import sympy as sp
from scipy import optimize

from decomfl_lab.config import TrainConfig
from decomfl_lab.models import build_model, num_parameters
from theory.audit.algorithms import PROGRAMS, Line, Program, entry, outcome
from theory.audit.entry import Entry, Evidence
from theory.audit.instruments import equal
from theory.bounds import statement
from theory.communication import TABLE_1, expected_numbers, expected_traffic
from theory.formula import Formula
from theory.quadratic import Quadratic, expected
from theory.setting import Setting, second_moment_factor
from theory.spectrum import Spectrum

__all__ = ["ENTRIES", "best_average"]

# The recursions of Section 3 and of the appendix on variants, run as the algorithms are.


def _context(code: str, depth: int = 1) -> Line:
    """A line that is no statement of the paper here."""
    return Line(label="", says="", depth=depth, code=code)


_DIFFERENCE: Final = Line(
    label="eq.zo-grad",
    says="g_{i,r}^k = (f_i(x_{i,r}^k + μ z; ξ) − f_i(x_{i,r}^k; ξ))/μ",
    depth=3,
    code="g[i, r, k] = (f(i, x[i, r, k] + mu * z[r, k], xi(i, r, k)) - f(i, x[i, r, k], xi(i, r, k))) / mu",
    plant="g[i, r, k] = (f(i, x[i, r, k] + mu * z[r, k], xi(i, r, k)) - f(i, x[i, r, k], xi(i, r, 0))) / mu",
)
_PULL: Final = Line(
    label="eq.naive.fedzo.1",
    says="x_{i,r}^1 = x_r for i ∈ C_r",
    depth=2,
    code="x[i, r, 1] = x[r]",
    plant="x[i, r, 1] = x[max(r - 1, 0)]",
)


def _local(label: str, says: str) -> Line:
    return Line(
        label=label,
        says=says,
        depth=3,
        code="x[i, r, k + 1] = x[i, r, k] - eta * g[i, r, k] * z[r, k]",
        plant="x[i, r, k + 1] = x[i, r, k] + eta * g[i, r, k] * z[r, k]",
    )


_LOOPS: Final = (_context("for i in C[r]:"), _context("for k in steps:", 2))
_AVERAGE: Final = Line(
    label="eq.naive.fedzo.3",
    says="x_{r+1} = (1/|C_r|) Σ_{i ∈ C_r} x_{i,r}^{K+1}",
    depth=1,
    code="x[r + 1] = sum(x[i, r, K + 1] for i in C[r]) / len(C[r])",
    plant="x[r + 1] = sum(x[i, r, K] for i in C[r]) / len(C[r])",
)
_WALK: Final = _local("eq.naive.fedzo.2", "x_{i,r}^{k+1} = x_{i,r}^k − η g_{i,r}^k z_{i,r}^k, k = 1..K")
_START: Final = (
    _context("z = {(r, k): normal(seed(r, k)) for r in range(R) for k in steps}", 0),
    _context('g, t = Symbols("g"), {i: 0 for i in clients}', 0),
    _context("for i in clients: x[i, 0, 1] = start", 0),
    _context("for r in range(R):", 0),
    _context("C[r] = choose(r, m)"),
)
_FEDZO: Final = Program((), _START, (_LOOPS[0], _PULL, _LOOPS[1], _DIFFERENCE, _WALK, _AVERAGE))

_SHARED: Final = _local("eq.interm.fedzo.1", "x_{i,r}^{k+1} = x_{i,r}^k − η g_{i,r}^k z_r^k, k = 1..K")
_GROUPED: Final = Line(
    label="eq.interm.fedzo.2",
    says="x_{r+1} = x_r − η Σ_{k=0}^{K−1} ((1/|C_r|) Σ_{i ∈ C_r} g_{i,r}^k) z_r^k",
    depth=1,
    code="x[r + 1] = x[r] - eta * sum(sum(g[i, r, k] for i in C[r]) / len(C[r]) * z[r, k] for k in range(1, K + 1))",
    printed="x[r + 1] = x[r] - eta * sum(sum(g[i, r, k] for i in C[r]) / len(C[r]) * z[r, k] for k in range(0, K))",
    why="local steps count from 1 to K in the line above; there is no g_{i,r}^0, and g_{i,r}^K is left out",
    fix="Σ_{k=1}^K",
)
_INTERMEDIATE: Final = Program((), _START, (_LOOPS[0], _PULL, _LOOPS[1], _DIFFERENCE, _SHARED, _GROUPED))

_MEAN: Final = Line(
    label="line-280",
    says="g_j^k = (1/|C_r|) Σ_{i ∈ C_r} g_{i,j}^k",
    depth=2,
    code="for j, k in product(range(t[i], r), steps): g[j, k] = sum(g[n, j, k] for n in C[j]) / len(C[j])",
    printed="for j, k in product(range(t[i], r), steps): g[j, k] = sum(g[n, j, k] for n in C[r]) / len(C[r])",
    why="round j was that of C_j: clients of C_r that were not in C_j have no g_{i,j}^k",
    fix="g_j^k = (1/|C_j|) Σ_{i ∈ C_j} g_{i,j}^k",
)
_RECONSTRUCT: Final = Line(
    label="eq.reconstruct",
    says="x_{i,r}^1 = x_{i,r'}^K − η Σ_{j=r'}^{r−1} Σ_{k=1}^K g_j^k z_j^k",
    depth=2,
    code="x[i, r, 1] = x[i, t[i], 1] "
    "- eta * sum((g[j, k] * z[j, k] for j in range(t[i], r) for k in steps), 0 * start)",
    printed="x[i, r, 1] = x[i, t[i], K if (i, t[i], K) in x else 1] "
    "- eta * sum((g[j, k] * z[j, k] for j in range(t[i], r) for k in steps), 0 * start)",
    why="x_{i,r'}^K is where the last local step starts; the client reverts to x_{i,r'}^1, which equals x_{r'}",
    fix="x_{i,r}^1 = x_{i,r'}^1 − η Σ_{j=r'}^{r−1} Σ_{k=1}^K g_j^k z_j^k",
)
_SERVER_STEP: Final = _context(
    "x[r + 1] = x[r] - eta * sum(sum(g[i, r, k] for i in C[r]) / m * z[r, k] for k in steps)"
)
_REBUILT: Final = Program(
    (),
    _START,
    (
        _LOOPS[0],
        _MEAN,
        _RECONSTRUCT,
        _LOOPS[1],
        _DIFFERENCE,
        _SHARED,
        _context("for i in C[r]: t[i] = r"),
        _SERVER_STEP,
    ),
)

# Corrected afterwards instead of reverted: a client that took part in round t holds x_{t+1}.
_SYNC: Final = Line(
    label="eq.sync",
    says="x_{r+1} − x_{i,r}^K = x_r − x_{i,r}^1 − η Σ_{k=1}^K (g_r^k − g_{i,r}^k) z_r^k",
    depth=2,
    code="x[i, r + 1, 1] = x[i, r, K + 1] + x[r] - x[i, r, 1] "
    "- eta * sum((g[r, k] - g[i, r, k]) * z[r, k] for k in steps)",
    printed="x[i, r + 1, 1] = x[i, r, K] + x[r] - x[i, r, 1] "
    "- eta * sum((g[r, k] - g[i, r, k]) * z[r, k] for k in steps)",
    why="K steps from x_{i,r}^1 end at x_{i,r}^{K+1}",
    fix="x_{r+1} − x_{i,r}^{K+1} = x_r − x_{i,r}^1 − η Σ_{k=1}^K (g_r^k − g_{i,r}^k) z_r^k",
)
_HELD: Final = Line(
    label="line-701",
    says="x_{i,r'}^K at the end of the local update is identical to the server's x_{r'}",
    depth=2,
    code="missed = range(t[i], r)",
    printed="missed = range(max(t[i] - 1, 0), r)",
    why="after the correction the client holds x_{r'+1}, so the records of rounds r'+1 .. r−1 are what it misses",
    fix="x_{i,r'}^{K+1} so corrected is identical to x_{r'+1}",
)
_SYNCHRONISED: Final = Program(
    (),
    _START,
    (
        _LOOPS[0],
        _HELD,
        _context(
            "x[i, r, 1] = x[i, t[i], 1] - eta * sum((g[j, k] * z[j, k] for j in missed for k in steps), 0 * start)", 2
        ),
        _LOOPS[1],
        _DIFFERENCE,
        _SHARED,
        _context("for k in steps: g[r, k] = sum(g[i, r, k] for i in C[r]) / len(C[r])"),
        _context("x[r + 1] = x[r] - eta * sum(g[r, k] * z[r, k] for k in steps)"),
        _LOOPS[0],
        _SYNC,
        _context("t[i] = r + 1", 2),
    ),
)

_RECURSIONS: Final = (
    *(entry(_FEDZO, line, kind="equation", at=228) for line in (_PULL, _WALK, _AVERAGE)),
    entry(_FEDZO, _DIFFERENCE, kind="equation", at=238),
    *(entry(_INTERMEDIATE, line, kind="equation", at=259) for line in (_SHARED, _GROUPED)),
    entry(_REBUILT, _RECONSTRUCT, kind="equation", at=277),
    entry(_REBUILT, _MEAN, kind="claim"),
    entry(_SYNCHRONISED, _SYNC, kind="equation", at=704),
    entry(_SYNCHRONISED, _HELD, kind="claim"),
)


# The other displays.


def _sampling_is_fair() -> Evidence:
    """(1/m) Σ_{i ∈ C_r} f_i over all sets C_r, f_i of any values: its mean is (1/M) Σ f_i."""
    values, m = [Fraction(3), Fraction(-1), Fraction(7, 2), Fraction(11), Fraction(0)], 2
    sets = list(combinations(values, m))
    mean = sum(sum(each) for each in sets) / (m * len(sets))
    whole = sum(values) / len(values)
    return Evidence(
        "arithmetic", mean == whole, f"mean over all {len(sets)} sets of {m} clients {mean}, of all {whole}"
    )


def _expansion(order: int) -> Evidence:
    """(f(x + μz) − f(x))/μ of a polynomial in two variables against its Taylor polynomial in μ."""
    mu, x, y, u, v = sp.symbols("mu x y u v")

    def f(a: sp.Expr, b: sp.Expr) -> sp.Expr:
        return a**3 * b + 2 * a * b**2 - b**3 + a

    quotient = sp.expand((f(x + mu * u, y + mu * v) - f(x, y)) / mu)
    slope = sum(sp.diff(f(x, y), a) * z for a, z in ((x, u), (y, v)))
    curvature = sum(sp.diff(f(x, y), a, b) * z * w for a, z in ((x, u), (y, v)) for b, w in ((x, u), (y, v)))
    return equal(
        sum(quotient.coeff(mu, n) * mu**n for n in range(order)),
        sp.expand(slope + (mu / 2 * curvature if order > 1 else 0)),
        f"the difference quotient of x³y + 2xy² − y³ + x up to order μ^{order - 1}",
    )


def _momentum() -> sp.Expr:
    """m^{k+1} as the printed equation has it, solved for it."""
    m, beta, g = sp.symbols("m beta g", positive=True)
    return sp.solve(sp.Eq(m, beta * m + (1 - beta) * g), m)[0]


def _momentum_printed() -> Evidence:
    return equal(
        _momentum(), sp.Symbol("g", positive=True), "printed, solved for m^{k+1}, against g z: no momentum for any β"
    )


def _unrolled(steps: int) -> tuple[sp.Expr, sp.Expr]:
    """m^{steps+1} from m^1 = 0 by m^{k+1} = βm^k + (1 − β) g_k, and x^1 − x^{steps+1} in units of η."""
    beta, m, moved = sp.Symbol("beta", positive=True), sp.Integer(0), sp.Integer(0)
    for k in range(1, steps + 1):
        m = beta * m + (1 - beta) * sp.Symbol(f"g{k}", positive=True)
        moved += m
    return m, moved


def _momentum_mended() -> Evidence:
    beta, n = sp.Symbol("beta", positive=True), 3
    mean = (1 - beta) * sum(beta ** (n - k) * sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1))
    return equal(_unrolled(n)[0], mean, "mended, m^4 against (1 − β) Σ_k β^{3−k} g_k z_k")


def _momentum_step() -> Evidence:
    beta, n = sp.Symbol("beta", positive=True), 3
    weights = sum((1 - beta ** (n + 1 - k)) * sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1))
    return equal(_unrolled(n)[1], weights, "three steps against −η Σ_k (1 − β^{4−k}) g_k z_k, plain SGD for β = 0")


def _linear_in_scalars() -> Evidence:
    """K momentum steps under own scalars against those under the means, compensated by their differences alone."""
    n = 3
    scalars = [sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1)]
    mean = [sp.Symbol(f"h{k}", positive=True) for k in range(1, n + 1)]
    own = _unrolled(n)[1]
    under_mean = own.subs(dict(zip(scalars, mean, strict=True)), simultaneous=True)
    compensation = own.subs({g: h - g for g, h in zip(scalars, mean, strict=True)}, simultaneous=True)
    return equal(own + compensation, under_mean, "own momentum steps + those of the differences, against the server's")


_UPDATE: Final = "local[i] = x[i, r, k + 1] = x[i, r, k] - eta * delta"


def _without_mean() -> Evidence:
    broken = outcome(PROGRAMS[3], {"line-797": _UPDATE})
    return Evidence("execution", bool(broken), f"in Algorithm 4, without 1/P: {broken or 'nothing breaks'}")


def _with_mean() -> Evidence:
    broken = outcome(PROGRAMS[3])
    return Evidence(
        "execution", not broken, f"in Algorithm 4, with 1/P: {broken or 'every model equals the recursion'}"
    )


def _projection() -> Evidence:
    """‖z‖²/d has mean 1 and variance 2/d, from E‖z‖² = d, E‖z‖⁴ = d(d + 2)."""
    d = sp.Symbol("d", positive=True)
    fourth = 3 * d + d * (d - 1)  # d fourth moments of 3, d(d − 1) products of second moments
    return equal(fourth / d**2 - 1, 2 / d, "variance of ⟨z, z⟩/d")


def _normal_mean(polynomial: sp.Expr, z: sp.Symbol) -> sp.Expr:
    """E of a polynomial in a normal variable: E z^n = (n − 1)!! for even n, else 0."""
    terms = sp.Poly(sp.expand(polynomial), z).terms()
    return sum(coefficient * sp.factorial2(n - 1) for (n,), coefficient in terms if n % 2 == 0)


def _gaussian_smoothing() -> Evidence:
    x, mu, z = sp.symbols("x mu z", real=True)
    integral = sp.integrate((x + mu * z) ** 4 * sp.exp(-(z**2) / 2), (z, -sp.oo, sp.oo)) / sp.sqrt(2 * sp.pi)
    return equal(integral, _normal_mean((x + mu * z) ** 4, z), "(1/√2π) ∫ (x + μz)⁴ e^{−z²/2} dz against E (x + μz)⁴")


def _smoothed_scalar() -> Evidence:
    x, mu, z = sp.symbols("x mu z", real=True)
    g = sp.expand(((x + mu * z) ** 4 - x**4) / mu)
    smoothed = _normal_mean((x + mu * z) ** 4, z)
    return equal(_normal_mean(g * z, z), sp.diff(smoothed, x), "E g z against the derivative of f^μ, f = x⁴")


def _told_by_scalars() -> Evidence:
    """Scalars ⟨z, v⟩ over all signs z, which is what a server sees that does not know the seeds."""
    v = np.array([3.0, -1.0, 2.0])
    signs = np.array(list(product((-1, 1), repeat=3)))
    own, larger, turned = (sorted((signs @ each).tolist()) for each in (v, 10 * v, v[[2, 0, 1]]))
    squares = [float(np.mean(np.square(scalars))) for scalars in (own, larger)]
    return Evidence(
        "counter-example",
        squares == [float(v @ v), 100 * float(v @ v)] and own == turned,
        f"mean g² over all sign vectors z, whatever their seeds: {squares[0]:g} = ‖∇f_i‖², and {squares[1]:g} for data "
        "of ten times the gradient; the same scalars for a gradient turned",
        {"own": squares[0], "larger": squares[1]},
    )


def _signs_are_not_linear() -> Evidence:
    """Steps of sign(g): own −1, the server's +2, the difference's sign(3)."""
    own, server = -1.0, 2.0
    made, due = np.sign(own) + np.sign(server - own), np.sign(server)
    return Evidence("counter-example", bool(made != due), f"sign rule: {made:g} after correction, {due:g} due")


_DISPLAYS: Final = (
    Entry(
        label="line-215",
        line=215,
        kind="equation",
        says="min f = min (1/M) Σ_i f_i, f_i = E f_i(·; ξ_i)",
        verdict="correct",
        checks=(_sampling_is_fair,),
    ),
    Entry(
        label="line-241",
        line=241,
        kind="claim",
        says="for small μ, g_{i,r}^k approximates the inner product of ∇f_i and z",
        verdict="correct",
        checks=(partial(_expansion, 1),),
    ),
    Entry(
        label="line-275",
        line=275,
        kind="claim",
        says="Presuming that the client's x_{i,r'}^K is the server's x_{r'}",
        verdict="typo",
        checks=entry(_REBUILT, _RECONSTRUCT, at=277).checks,
        why="after the revert it is x_{i,r'}^1 that equals x_{r'}",
        fix="x_{i,r'}^1 = x_{r'}",
    ),
    Entry(
        label="eq.multiple_perturbation",
        line=668,
        kind="equation",
        says="x_{i,r}^{k+1} = x_{i,r}^k − η Σ_p g_{i,r,p}^k z_{r,p}^k",
        verdict="typo",
        checks=(_without_mean, _with_mean),
        why="the sum lacks 1/P: the text below it and Algorithm 4 average, and the step sizes of the theorems do",
        fix="x_{i,r}^{k+1} = x_{i,r}^k − (η/P) Σ_p g_{i,r,p}^k z_{r,p}^k",
    ),
    Entry(
        label="line-679",
        line=679,
        kind="equation",
        says="m_{i,r}^{k+1} = β m_{i,r}^{k+1} + (1 − β) g_{i,r}^k z_r^k",
        verdict="typo",
        checks=(_momentum_printed, _momentum_mended),
        why="m^{k+1} stands on both sides: solved for, it is g z, without momentum",
        fix="m_{i,r}^{k+1} = β m_{i,r}^k + (1 − β) g_{i,r}^k z_r^k",
    ),
    Entry(
        label="line-679.2",
        line=679,
        kind="equation",
        says="x_{i,r}^{k+1} = x_{i,r}^k − η m_{i,r}^{k+1}",
        verdict="correct",
        checks=(_momentum_step,),
    ),
    Entry(
        label="line-710",
        line=710,
        kind="claim",
        says="To correct x afterwards by scalars and seeds is specific to SGD",
        verdict="false",
        checks=(_linear_in_scalars, _signs_are_not_linear),
        why="K steps with momentum are linear in the scalars too: x and m are corrected by K steps of the differences",
        fix="specific to rules that are linear in the scalars",
    ),
    Entry(
        label="line-742",
        line=742,
        kind="claim",
        says="With private seeds the scalars cannot convey any information about the local data",
        verdict="false",
        checks=(_told_by_scalars,),
        why="their mean square is ‖∇f_i‖² (up to μ), whatever the directions: it tells clients apart",
        fix="the scalars tell norms of gradients, not their directions",
    ),
    Entry(
        label="eq.grad.projection",
        line=808,
        kind="equation",
        says="ĝ_{i,r} = ⟨z_r, ∇f_i(x_{i,r})⟩, z_r ~ N(0, I)",
        verdict="correct",
        checks=(partial(_expansion, 1),),
    ),
    Entry(
        label="line-812",
        line=812,
        kind="equation",
        says="Proj_z(∇f) = ⟨∇f, z⟩ z/⟨z, z⟩ ≈ (1/d) ⟨z, ∇f⟩ z",
        verdict="correct",
        checks=(_projection,),
    ),
    Entry(
        label="line-861",
        line=861,
        kind="claim",
        says="The zeroth-order gradient is an unbiased estimate of ∇f^μ",
        verdict="correct",
        checks=(_smoothed_scalar,),
    ),
    Entry(
        label="line-862",
        line=862,
        kind="equation",
        says="f^μ(x) = (2π)^{−d/2} ∫ f(x + μz) e^{−‖z‖²/2} dz = E f(x + μz)",
        verdict="correct",
        checks=(_gaussian_smoothing,),
    ),
    Entry(
        label="line-871",
        line=871,
        kind="equation",
        says="(f(x + μz) − f(x))/μ = ∇fᵀz + (μ/2) zᵀ∇²f z + …",
        verdict="correct",
        checks=(partial(_expansion, 2),),
    ),
    Entry(
        label="line-874",
        line=874,
        kind="claim",
        says="The zeroth-order gradient captures more information along z than the projection",
        verdict="not checkable",
        checks=(),
        why="no measure of information is given; the two scalars differ by (μ/2) zᵀ∇²f z + …",
    ),
)


# Communication.


def _config(method: str, *, R: int = 1000, M: int = 100, m: int = 10, K: int = 1, P: int = 5) -> TrainConfig:
    return TrainConfig(
        method=method,
        clients=M,
        sampled=m,
        rounds=R,
        local_steps=K,
        perturbations=P,
        seeds="per-direction" if method in ("decomfl", "decomfl-projection", "baffle") else "per-step",
    )


def _dimension_free(method: str = "decomfl") -> Evidence:
    config = _config(method)
    sizes = [expected_traffic(config, d).scalars for d in (10**3, 10**9)]
    dense = [expected_traffic(_config("fedavg"), d).scalars for d in (10**3, 10**9)]
    return Evidence(
        "arithmetic",
        sizes[0] == sizes[1] and math.isclose(dense[1], 1e6 * dense[0]),
        f"scalars a client in {config.rounds} rounds: {sizes[0]:.0f} for d = 10³, {sizes[1]:.0f} for d = 10⁹; FedAvg "
        f"{dense[0]:.3g}, {dense[1]:.3g}",
    )


def _lag() -> Evidence:
    """Rounds since a client was last sampled: q(1 − q)^{n−1}."""
    q = 0.1
    quantile = math.ceil(math.log(0.01) / math.log(1 - q))
    return Evidence(
        "arithmetic",
        quantile > 1 / q,
        f"m/M = {q}: a sampled client gets the records of {1 / q:.0f} rounds on average, of {quantile} or more in 1 % "
        "of cases",
    )


def _full_models(method: str) -> Evidence:
    R, d = 50, 1000
    scalars = expected_traffic(_config(method, R=R, M=4, m=4), d).scalars / R
    return Evidence(
        "arithmetic", scalars == 2 * d, f"{method}, scalars a sampled client and round: {scalars:g}, d = {d}"
    )


def _baffle() -> Evidence:
    R, d, P = 50, 1000, 5
    traffic = expected_traffic(_config("baffle", R=R, M=4, m=4, P=P), d)
    return Evidence(
        "arithmetic",
        (traffic.up_scalars / R, traffic.down_scalars / R) == (P, d),
        f"a sampled client of BAFFLE and round: {traffic.up_scalars / R:g} up, {traffic.down_scalars / R:g} down, "
        f"d = {d}, P = {P}",
    )


def _same_as_projection() -> Evidence:
    ours, other = (expected_traffic(_config(method), 1000) for method in ("decomfl", "decomfl-projection"))
    return Evidence("arithmetic", ours == other, f"bytes a client: {ours.bytes:.0f} and {other.bytes:.0f}")


def _records() -> Evidence:
    M, m, K, P, R = 100, 10, 2, 5, 100_000
    sent = expected_numbers(R, M=M, m=m, K=K, P=P)
    records, replies = 2 * M * sent.down / R, M * sent.up / R
    return Evidence(
        "arithmetic",
        0.999 < records / (2 * M * K * P) <= 1 and math.isclose(replies, m * K * P),
        f"M = {M}, m = {m}, K = {K}, P = {P}: records {records:.2f} words a round, 2MKP = {2 * M * K * P}; replies "
        f"{replies:g}, mKP = {m * K * P}",
    )


def _all_records() -> Evidence:
    """Records that each client has got in a run of Algorithms 1 and 2, when it is sampled in round r."""
    count = "received[i] = received.get(i, 0) + len(missed)\nassert received[i] == r * K"
    program = replace(PROGRAMS[0], server=(_context("received = {}", 0), *PROGRAMS[0].server))
    rebuild = next(line.code for line in program.server if line.label == "line-306")
    broken, planted = (outcome(program, {"line-306": f"{rebuild}\n{code}"}) for code in (count, f"{count} + 1"))
    return Evidence(
        "execution",
        not broken and bool(planted),
        f"a client sampled in round r of Algorithm 1 has got records of rK steps, r = 0..3: {broken or 'each time'}",
    )


def _server_of_projection() -> Evidence:
    own, other = outcome(PROGRAMS[4]), outcome(replace(PROGRAMS[4], server=PROGRAMS[2].server))
    return Evidence(
        "execution",
        not own and bool(other),
        f"Algorithm 5 with the server of Algorithm 1: {own or 'every model equals the recursion'}; with that of "
        f"Algorithm 3: {other or 'likewise'}",
    )


def _plans() -> Evidence:
    M, m, K, P, R = 100, 10, 1, 5, 100_000
    sent = expected_numbers(R, M=M, m=m, K=K, P=P)
    down, printed, mended = M * (sent.down + sent.seeds) / R, 2 * M * K * P, (2 * M + m) * K * P
    return Evidence(
        "arithmetic",
        down > 1.01 * printed and math.isclose(down, mended, rel_tol=1e-3),
        f"M = {M}, m = {m}, P = {P}: {down:.1f} words down a round, 2MKP = {printed}, (2M + m)KP = {mended}",
    )


def _products() -> Evidence:
    """Complexity = words a round · rounds, up to a factor that is a number."""
    factors = {
        f"{name} {way}": sp.simplify(each.expression * row.rounds.expression / total.expression)
        for name, row in TABLE_1.items()
        for way, each, total in (
            ("up", row.uplink, row.uplink_complexity),
            ("down", row.downlink, row.downlink_complexity),
        )
    }
    wrong = [f"; {name}: {factor} times" for name, factor in factors.items() if not factor.is_number]
    return Evidence(
        "algebra", not wrong, f"{len(factors) - len(wrong)} of {len(factors)} products agree{''.join(wrong)}"
    )


def _rounds_to(rate: str, row: str) -> Evidence:
    """R at which a rate in R is ε."""
    R, epsilon = (Formula(name).expression for name in ("R", "epsilon"))
    solved = sp.solve(sp.Eq(Formula(rate).expression, epsilon), R)[0]
    return equal(solved, TABLE_1[row].rounds.expression, f"rounds to {rate} = ε against those of {row}")


def _threshold() -> Evidence:
    ratio = (
        TABLE_1["DeComFL, low rank"].downlink_complexity.expression / TABLE_1["FedAvg"].downlink_complexity.expression
    )
    return equal(ratio, Formula("kappa/(m*d/(M*K))").expression, "DeComFL's downlink over FedAvg's, κ/(md/(MK))")


# Rates.


@lru_cache(maxsize=64)
def best_average(
    *, d: int = 1, K: int = 1, P: int = 1, m: int = 1, M: int = 1, sigma: float = 0.0, sigma_G: float = 0.0
) -> float:
    """The least (1/R) Σ E‖∇f(x_r)‖² over all η, of f_i = ½‖x‖² − b_iᵀx, D = 1, R = 10⁴, Gaussian directions; exact."""
    problem = Quadratic.of(Spectrum.flat(d), D=1.0, sigma=sigma, sigma_G=sigma_G)

    def average(log_eta: float) -> float:
        return expected(problem, problem.setting(eta=math.exp(log_eta), m=m, M=M, P=P, K=K, R=_ROUNDS)).average

    largest = -math.log(K * second_moment_factor("gaussian", d=d, P=P))
    found = optimize.minimize_scalar(average, bounds=(largest - 10, largest), method="bounded", options={"xatol": 1e-3})
    return min(float(found.fun), average(largest))


_ROUNDS: Final = 10_000

# What there is more of -> the best average with so many of it; σ = 1 or σ_G = 1, the other 0.
_MORE: Final[Mapping[str, Callable[[int], float]]] = {
    "K, clients differ": lambda n: best_average(K=n, M=2, sigma_G=1.0),
    "K, clients differ, d = 1000": lambda n: best_average(K=n, M=2, sigma_G=1.0, d=1000),
    "K, clients alike": lambda n: best_average(K=n, sigma=1.0),
    "P": lambda n: best_average(P=n, sigma=1.0),
    "P, d = 1000": lambda n: best_average(P=n, sigma=1.0, d=1000),
    "m": lambda n: best_average(m=n, M=n, sigma=1.0),
}


def _speedup(name: str, few: int, many: int, *, holds: bool) -> Evidence:
    """How much the best average falls from few to many of something, against √(many/few)."""
    before, after, claimed = _MORE[name](few), _MORE[name](many), math.sqrt(many / few)
    return Evidence(
        "counter-example",
        (before / after > 0.75 * claimed) is holds,
        f"{name}, {few} -> {many}: the least average of E‖∇f‖² over all η falls {before / after:.3g} times, from "
        f"{before:.4g} to {after:.4g}; claimed {claimed:.3g} (½‖x‖² − b_iᵀx, D = 1, R = 10⁴)",
        {"before": before, "after": after, "claimed": claimed},
    )


def _mended(name: str, law: str, *cases: tuple[int, int]) -> Evidence:
    """A corrected bound on the same problems, at its best η, for pairs of K and P."""
    theorem, worst = statement(name), 0.0
    problem = Quadratic.of(Spectrum.flat(1), D=1.0, sigma=1.0, sigma_G=1.0)
    for K, P in cases:
        setting = problem.setting(m=1, M=2, P=P, K=K, R=_ROUNDS, law=law)
        setting = replace(setting, eta=theorem.best_eta(setting))
        worst = max(worst, expected(problem, setting).average / sum(theorem.bound(setting)))
    return Evidence("search", worst <= 1, f"corrected {name} at these K and P: left/right at most {worst:.3g}")


def _one_long_step() -> Evidence:
    """K gradient steps of η on ½(x − c)² against one step of 1 − (1 − η)^K."""
    x, c, eta = sp.symbols("x c eta")
    walk, K = x, 5
    for _ in range(K):
        walk = walk - eta * (walk - c)
    long = 1 - (1 - eta) ** K
    return equal(
        sp.expand(walk),
        sp.expand(x - long * (x - c)),
        "FedAvg on ½(x − c_i)², 5 steps of η, against 1 step of 1 − (1 − η)⁵",
    )


def _flat_in_dimension() -> Evidence:
    """The corrected Theorem 2 at its best η, κ = 10, μ → 0, for d from 10³ to 10⁹."""
    bounds = []
    for d in (10**3, 10**6, 10**9):
        setting = Setting(d=d, L=1.0, m=2, M=8, P=5, R=2000, sigma=1.0, sigma_G=1.0, kappa=10.0, law="sphere")
        theorem = statement("theorem-2")
        bounds.append(sum(theorem.bound(replace(setting, eta=theorem.best_eta(setting)))))
    listed = ", ".join(f"{bound:.6g}" for bound in bounds)
    return Evidence("search", max(bounds) < 1.01 * min(bounds), f"bound at the best η for d = 10³, 10⁶, 10⁹: {listed}")


def _smoother() -> Evidence:
    """The gradient of f = cos has L = 1; that of f^μ = E cos(x + μz) = cos x E cos μz has e^{−μ²/2}."""
    mu, z = sp.symbols("mu z", positive=True)
    factor = sp.integrate(sp.cos(mu * z) * sp.exp(-(z**2) / 2), (z, -sp.oo, sp.oo)) / sp.sqrt(2 * sp.pi)
    return equal(factor, sp.exp(-(mu**2) / 2), "cos smoothed is E cos μz times cos, against e^{−μ²/2} ≤ 1")


def _linear_in_directions() -> Evidence:
    one, two = (sum(astuple(expected_numbers(1000, M=100, m=10, K=1, P=P))) for P in (5, 10))
    spread = [second_moment_factor("gaussian", d=1000, P=P) - 1 for P in (5, 10)]
    return Evidence(
        "arithmetic",
        math.isclose(two, 2 * one) and math.isclose(spread[0], 2 * spread[1]),
        f"P = 5 -> 10: words {one:.0f} -> {two:.0f}, E‖G‖²/‖∇f‖² − 1 {spread[0]:.4g} -> {spread[1]:.4g}",
    )


def _parameters(name: str, d: int) -> Evidence:
    found = num_parameters(build_model(name, seed=0, in_shape=(1, 28, 28), classes=10))
    return Evidence("execution", found == d, f"{name} has {found} parameters, printed {d}")


def _within(what: str, printed: float, computed: float, digits: int) -> Evidence:
    """Evidence that a number of the text is the computed one, rounded to so many digits."""
    return Evidence(
        "arithmetic", float(f"{computed:.{digits}g}") == printed, f"{what} = {computed:.6g}, printed {printed:g}"
    )


_LOCAL_STEPS: Final = partial(_speedup, "K, clients differ", 10, 400, holds=False)
_FEW_LOCAL_STEPS: Final = partial(_speedup, "K, clients differ, d = 1000", 1, 16, holds=True)
_ALIKE: Final = partial(_speedup, "K, clients alike", 1, 16, holds=True)
_DIRECTIONS: Final = partial(_speedup, "P", 100, 10_000, holds=False)
_FEW_DIRECTIONS: Final = partial(_speedup, "P, d = 1000", 1, 16, holds=True)
_CLIENTS: Final = partial(_speedup, "m", 1, 16, holds=True)
_MENDED_RATE: Final = partial(_mended, "corollary-1", "gaussian", (1, 1), (10, 1), (400, 1), (1, 100), (1, 10_000))
_MENDED_LOW_RANK: Final = partial(_mended, "theorem-2", "sphere", (1, 1), (1, 100), (1, 10_000))
_WHY_K: Final = "clients that differ are sampled: what K local steps add to σ_G² no longer falls with K"
_WHY_P: Final = "all directions see one mini-batch: its noise does not fall with P"


def _claim(label: str, says: str, *checks: Callable[[], Evidence]) -> Entry:
    """A correct claim of the text."""
    line = int(label.removeprefix("line-").split(".")[0])
    return Entry(label=label, line=line, kind="claim", says=says, verdict="correct", checks=checks)


_CLAIMS: Final = (
    _claim("line-134", "O(d) -> O(1): what is sent does not depend on d", _dimension_free),
    Entry(
        label="line-135",
        line=135,
        kind="claim",
        says="State-of-the-art rates with linear speed-up in the number of clients and of local steps",
        verdict="false",
        checks=(_LOCAL_STEPS, _CLIENTS, _FEW_LOCAL_STEPS, _ALIKE),
        why=f"in the clients it is so, in local steps not: {_WHY_K}",
        fix="linear speed-up in clients; in local steps as long as K ≤ d/P or the clients are alike",
    ),
    _claim("line-136", "With low effective rank the rate does not depend on d", _flat_in_dimension),
    _claim(
        "line-151",
        "GPT-J-6B, 10 billion tokens, batches of 262K: 915.5 TB",
        partial(
            _within,
            "10¹⁰/2¹⁸ steps · 6·10⁹ parameters of 2 bytes, both ways, in TB",
            915.5,
            1e10 / 2**18 * 6e9 * 4 / 1e12,
            4,
        ),
    ),
    _claim("line-171", "A convergence rate independent of the model dimension", _flat_in_dimension),
    Entry(
        label="line-179",
        line=179,
        kind="claim",
        says="In each round both ways only a constant number of scalars",
        verdict="false",
        checks=(_dimension_free, _lag),
        why="it does not depend on d, but downwards it is 2KP for every round that the client missed: unbounded",
        fix="a number that does not depend on d; downwards 2KP·M/m on average",
    ),
    Entry(
        label="line-181",
        line=181,
        kind="claim",
        says="O(√(d/(mPKR))) under the standard conditions",
        verdict="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _CLIENTS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS, _MENDED_RATE),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="O(√((1 + d/P)(σ² + σ_G²)/(mKR))) for K ≤ d/P",
    ),
    Entry(
        label="line-182",
        line=182,
        kind="claim",
        says="Linear speed-up in local steps, directions and clients",
        verdict="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _CLIENTS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS, _MENDED_RATE),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="linear speed-up in clients; in P up to d, in K up to d/P",
    ),
    Entry(
        label="line-183",
        line=183,
        kind="claim",
        says="O(√(κ/(mPR))) under the κ-effective rank assumption",
        verdict="does not follow",
        checks=(_DIRECTIONS, _MENDED_LOW_RANK),
        why="Theorem 2 has it for K = 1 and κ > P only; for P > κ (here κ = d = 1) it does not fall with P",
        fix="O(√((1 + κ/P)/(mR))), K = 1",
    ),
    _claim(
        "line-184",
        "O(1) a round and a dimension-free rate: the total does not depend on d",
        _dimension_free,
        _flat_in_dimension,
    ),
    _claim(
        "line-187",
        "OPT-1.3B: about 10 GB a round between each client and the server",
        partial(_within, "1.3·10⁹ parameters of 4 bytes, both ways, in GB", 10, 1.3e9 * 4 * 2 / 1e9, 2),
    ),
    _claim(
        "line-207",
        "FedZO sends O(d) a round, as FedAvg",
        *(partial(_full_models, name) for name in ("fedzo", "fedavg")),
    ),
    _claim("line-208", "BAFFLE: O(P) up, O(d) down", _baffle),
    _claim("line-246", "A vector of length 2d a client and round", partial(_full_models, "fedzo")),
    _claim("line-499", "Records have length 2mKP·h, h the lag; on average 2MKP a round; replies mKP", _records),
    _claim("line-500", "By round R a sampled client has received 2RKP scalars in records", _all_records),
    _claim("line-506", "For κ ≪ md/(MK) DeComFL needs less communication than FedAvg", _threshold),
    _claim("line-544", "The CNN has 28,938 parameters", partial(_parameters, "cnn-mnist", 28_938)),
    _claim(
        "line-558",
        "The larger CNN has 1,206,590 parameters (with 62 outputs)",
        partial(_parameters, "cnn-fashion", 1_206_590),
    ),
    _claim(
        "line-623",
        "A few scalars whatever the dimension, rates and totals that do not depend on it (low rank)",
        _dimension_free,
        _flat_in_dimension,
    ),
    _claim("line-673", "Communication grows linearly with P, the variance falls", _linear_in_directions),
    Entry(
        label="line-685",
        line=685,
        kind="claim",
        says="After the local update x_{i,r}^K and m_{i,r}^K are to be reverted",
        verdict="typo",
        checks=entry(_SYNCHRONISED, _SYNC, at=704).checks,
        why="K steps from x_{i,r}^1 end at x_{i,r}^{K+1}",
        fix="x_{i,r}^{K+1} and m_{i,r}^{K+1}",
    ),
    _claim("line-843", "The server of gradient projection is that of Algorithm 1", _server_of_projection),
    _claim("line-845", "Gradient projection has the communication of DeComFL", _same_as_projection),
    _claim("line-865", "f^μ has no larger Lipschitz constant of its gradient", _smoother),
    _claim("line-919", "DeComFL's communication does not depend on what is fine-tuned", _dimension_free),
    Entry(
        label="line-948",
        line=948,
        kind="claim",
        says="OPT models of four sizes all converge around round 1250",
        verdict="not checkable",
        checks=(),
        why="read off a figure, with another learning rate for each model; no criterion of convergence is given",
    ),
)

_TABLE: Final = (
    Entry(
        label="tab-comm-comparison",
        line=477,
        kind="table",
        says="Table 1: communication = a round's · rounds; rounds from the rates √(1/(mKR)), √(d/(mPKR)), √(κ/(mPR))",
        verdict="correct",
        checks=(
            _products,
            partial(_rounds_to, "sqrt(1/(m*K*R))", "FedAvg"),
            partial(_rounds_to, "sqrt(d/(m*P*K*R))", "DeComFL"),
            partial(_rounds_to, "sqrt(kappa/(m*P*R))", "DeComFL, low rank"),
        ),
    ),
    Entry(
        label="line-477.2",
        line=477,
        kind="table",
        says="Table 1, downlink a round: 2MKP and 2MP",
        verdict="false",
        checks=(_plans,),
        why="the seeds of the round's own local steps go to m clients too, though records repeat them",
        fix="(2M + m)KP and (2M + m)P",
    ),
    Entry(
        label="line-477.3",
        line=477,
        kind="table",
        says="Table 1, rounds of FedAvg and FedCom: O(1/(mKε²)) with m of M clients sampled",
        verdict="false",
        checks=(_one_long_step, _ALIKE),
        why="on ½(x − c_i)² K local steps are one longer step: whatever K, the same models can be reached in R rounds",
        fix="O(1/(mKε²)) if clients are alike or all take part",
    ),
    Entry(
        label="line-477.4",
        line=477,
        kind="table",
        says="Table 1, rounds of FedZO and DeComFL: O(d/(mPKε²))",
        verdict="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="O((1 + d/P)/(mKε²)) for K ≤ d/P",
    ),
)

ENTRIES: Final = (*_RECURSIONS, *_DISPLAYS, *_CLAIMS, *_TABLE)
