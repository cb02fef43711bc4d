"""The main text and the appendices before the proofs: displays, and what the text says about them."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import combinations, product
from typing import Final

import numpy as np
import sympy as sp

from theory.audit.algorithms import PROGRAMS, Line, Program, entry, outcome
from theory.audit.entry import Entry, Evidence
from theory.audit.instruments import equal

__all__ = ["ENTRIES"]

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


def _smoother() -> Evidence:
    """The gradient of f = cos has L = 1; that of f^μ = E cos(x + μz) = cos x E cos μz has e^{−μ²/2}."""
    mu, z = sp.symbols("mu z", positive=True)
    factor = sp.integrate(sp.cos(mu * z) * sp.exp(-(z**2) / 2), (z, -sp.oo, sp.oo)) / sp.sqrt(2 * sp.pi)
    return equal(factor, sp.exp(-(mu**2) / 2), "cos smoothed is E cos μz times cos, against e^{−μ²/2} ≤ 1")


def _no_smoother() -> Evidence:
    """F = x²/2: its second derivative is 1, and that of f^μ is too."""
    x, mu, z = sp.symbols("x mu z", real=True)
    smoothed = _normal_mean((x + mu * z) ** 2 / 2, z)
    return equal(sp.diff(smoothed, x, 2), sp.Integer(1), "x²/2 smoothed is x²/2 + μ²/2, whose second derivative is 1")


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
        finding="correct",
        checks=(_sampling_is_fair,),
    ),
    Entry(
        label="line-241",
        line=241,
        kind="claim",
        says="for small μ, g_{i,r}^k approximates the inner product of ∇f_i and z",
        finding="correct",
        checks=(partial(_expansion, 1),),
    ),
    Entry(
        label="line-275",
        line=275,
        kind="claim",
        says="Presuming that the client's x_{i,r'}^K is the server's x_{r'}",
        finding="typo",
        checks=entry(_REBUILT, _RECONSTRUCT, at=277).checks,
        why="after the revert it is x_{i,r'}^1 that equals x_{r'}",
        fix="x_{i,r'}^1 = x_{r'}",
    ),
    Entry(
        label="eq.multiple_perturbation",
        line=668,
        kind="equation",
        says="x_{i,r}^{k+1} = x_{i,r}^k − η Σ_p g_{i,r,p}^k z_{r,p}^k",
        finding="typo",
        checks=(_without_mean, _with_mean),
        why="the sum lacks 1/P: the text below it and Algorithm 4 average, and the step sizes of the theorems do",
        fix="x_{i,r}^{k+1} = x_{i,r}^k − (η/P) Σ_p g_{i,r,p}^k z_{r,p}^k",
    ),
    Entry(
        label="line-679",
        line=679,
        kind="equation",
        says="m_{i,r}^{k+1} = β m_{i,r}^{k+1} + (1 − β) g_{i,r}^k z_r^k",
        finding="typo",
        checks=(_momentum_printed, _momentum_mended),
        why="m^{k+1} stands on both sides: solved for, it is g z, without momentum",
        fix="m_{i,r}^{k+1} = β m_{i,r}^k + (1 − β) g_{i,r}^k z_r^k",
    ),
    Entry(
        label="line-679.2",
        line=679,
        kind="equation",
        says="x_{i,r}^{k+1} = x_{i,r}^k − η m_{i,r}^{k+1}",
        finding="correct",
        checks=(_momentum_step,),
    ),
    Entry(
        label="line-685",
        line=685,
        kind="claim",
        says="After the local update x_{i,r}^K and m_{i,r}^K are to be reverted",
        finding="typo",
        checks=entry(_SYNCHRONISED, _SYNC, at=704).checks,
        why="K steps from x_{i,r}^1 end at x_{i,r}^{K+1}",
        fix="x_{i,r}^{K+1} and m_{i,r}^{K+1}",
    ),
    Entry(
        label="line-710",
        line=710,
        kind="claim",
        says="To correct x afterwards by scalars and seeds is specific to SGD",
        finding="false",
        checks=(_linear_in_scalars, _signs_are_not_linear),
        why="K steps with momentum are linear in the scalars too: x and m are corrected by K steps of the differences",
        fix="specific to rules that are linear in the scalars",
    ),
    Entry(
        label="line-742",
        line=742,
        kind="claim",
        says="With private seeds the scalars cannot convey any information about the local data",
        finding="false",
        checks=(_told_by_scalars,),
        why="their mean square is ‖∇f_i‖² (up to μ), whatever the directions: it tells clients apart",
        fix="the scalars tell norms of gradients, not their directions",
    ),
    Entry(
        label="eq.grad.projection",
        line=808,
        kind="equation",
        says="ĝ_{i,r} = ⟨z_r, ∇f_i(x_{i,r})⟩, z_r ~ N(0, I)",
        finding="correct",
        checks=(partial(_expansion, 1),),
    ),
    Entry(
        label="line-812",
        line=812,
        kind="equation",
        says="Proj_z(∇f) = ⟨∇f, z⟩ z/⟨z, z⟩ ≈ (1/d) ⟨z, ∇f⟩ z",
        finding="correct",
        checks=(_projection,),
    ),
    Entry(
        label="line-861",
        line=861,
        kind="claim",
        says="The zeroth-order gradient is an unbiased estimate of ∇f^μ",
        finding="correct",
        checks=(_smoothed_scalar,),
    ),
    Entry(
        label="line-862",
        line=862,
        kind="equation",
        says="f^μ(x) = (2π)^{−d/2} ∫ f(x + μz) e^{−‖z‖²/2} dz = E f(x + μz)",
        finding="correct",
        checks=(_gaussian_smoothing,),
    ),
    Entry(
        label="line-865",
        line=865,
        kind="claim",
        says="f^μ has no larger Lipschitz constant of its gradient than f",
        finding="correct",
        checks=(_smoother,),
    ),
    Entry(
        label="line-866",
        line=866,
        kind="claim",
        says="As a result the zeroth-order gradient converges better than the projection",
        finding="does not follow",
        checks=(_no_smoother, partial(_expansion, 1)),
        why="the constant may be the same, as on quadratics, and for small μ both scalars are the same",
        fix="as μ → 0 the two methods are one",
    ),
    Entry(
        label="line-871",
        line=871,
        kind="equation",
        says="(f(x + μz) − f(x))/μ = ∇fᵀz + (μ/2) zᵀ∇²f z + …",
        finding="correct",
        checks=(partial(_expansion, 2),),
    ),
    Entry(
        label="line-874",
        line=874,
        kind="claim",
        says="The zeroth-order gradient captures more information along z than the projection",
        finding="not checkable",
        checks=(),
        why="no measure of information is given; the two scalars differ by (μ/2) zᵀ∇²f z + …",
    ),
)

ENTRIES: Final = (*_RECURSIONS, *_DISPLAYS)
