"""The main text and the appendices before the proofs: displays, and what the text says about them."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import sympy as sp

from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, refutes, supports
from theory.findings.evidence.algorithms import PROGRAMS, mended, outcome, play
from theory.findings.finding import Evidence, by_role
from theory.findings.instruments import equal


@supports("line-215")
def sampling_is_fair() -> Evidence:
    """(1/m) Σ_{i ∈ C_r} f_i over all sets C_r, f_i of any values: its mean is (1/M) Σ f_i."""
    values, m = [Fraction(3), Fraction(-1), Fraction(7, 2), Fraction(11), Fraction(0)], 2
    sets = list(combinations(values, m))
    mean = sum(sum(each) for each in sets) / (m * len(sets))
    whole = sum(values) / len(values)
    return Evidence(
        "arithmetic", mean == whole, f"mean over all {len(sets)} sets of {m} clients {mean}, of all {whole}"
    )


def expansion(order: int) -> Evidence:
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


def _unrolled(steps: int) -> tuple[sp.Expr, sp.Expr]:
    """m^{steps+1} from m^1 = 0 by m^{k+1} = βm^k + (1 − β) g_k, and x^1 − x^{steps+1} in units of η."""
    m, moved = sp.Integer(0), sp.Integer(0)
    for k in range(1, steps + 1):
        m = MENDED["line-679"]["old"] * m + MENDED["line-679"]["new"] * sp.Symbol(f"g{k}", positive=True)
        moved += m
    return m, moved


@mends("line-679")
def momentum_mended() -> Evidence:
    beta, n = sp.Symbol("beta", positive=True), 3
    mean = (1 - beta) * sum(beta ** (n - k) * sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1))
    return equal(_unrolled(n)[0], mean, "mended, m^4 against (1 − β) Σ_k β^{3−k} g_k z_k")


@supports("line-679.2")
def momentum_step() -> Evidence:
    beta, n = sp.Symbol("beta", positive=True), 3
    weights = sum((1 - beta ** (n + 1 - k)) * sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1))
    return equal(_unrolled(n)[1], weights, "three steps against −η Σ_k (1 − β^{4−k}) g_k z_k, plain SGD for β = 0")


@refutes("line-710", cause="linear-rules", witness=True)
@by_role
def linear_in_scalars() -> Evidence:
    """K momentum steps under own scalars against those under the means, compensated by their differences alone."""
    n = 3
    scalars = [sp.Symbol(f"g{k}", positive=True) for k in range(1, n + 1)]
    mean = [sp.Symbol(f"h{k}", positive=True) for k in range(1, n + 1)]
    steps = _unrolled(n)[1]
    under_mean = steps.subs(dict(zip(scalars, mean, strict=True)), simultaneous=True)
    compensation = steps.subs({g: h - g for g, h in zip(scalars, mean, strict=True)}, simultaneous=True)
    return equal(
        steps + compensation, under_mean, "own momentum steps + those of the differences, against the server's"
    )


@refutes("eq.multiple_perturbation", cause="algorithm-slips")
def without_mean() -> Evidence:
    update = "local[i] = x[i, r, k + 1] = x[i, r, k] - eta * delta"
    broken = outcome(PROGRAMS["Algorithm 4"], {"line-797": update})
    return Evidence("execution", bool(broken), f"in Algorithm 4, without 1/P: {broken or 'nothing breaks'}")


mends("eq.multiple_perturbation")(mended, "Algorithm 4")


def without_the_last_line(name: str, last: str) -> Evidence:
    """The algorithm without its last line: every sampled client holds the recursion's model all the same."""
    whole = play(PROGRAMS[name])["x"]
    without = play(PROGRAMS[name], {last: "pass"})["x"]
    kept = [key for key in whole if isinstance(key, tuple)]
    same = all((without[key] == whole[key]).all() for key in kept)
    says = f"{len(kept)} models of clients in a run without {last.replace('-', ' ')}: the same is {same}"
    return Evidence("execution", same, says)


@refutes("line-742", cause="privacy")
def told_by_pairs() -> Evidence:
    """Scalars ⟨z, v⟩ and ⟨z, w⟩ of two clients along the same signs z: their mean product is ⟨v, w⟩."""
    v, w = np.array([3.0, -1.0, 2.0]), np.array([1.0, 4.0, -2.0])
    signs = np.array(list(product((-1, 1), repeat=3)))
    mean = float(np.mean((signs @ v) * (signs @ w)))
    return Evidence(
        "counter-example",
        mean == float(v @ w),
        f"mean g_i g_j over all sign vectors z that both share: {mean:g} = ⟨∇f_i, ∇f_j⟩",
    )


@refutes("line-742", cause="privacy", witness=True)
def told_by_scalars() -> Evidence:
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


@mends("line-710")
def signs_are_not_linear() -> Evidence:
    """Steps of sign(g): own −1, the server's +2, the difference's sign(3)."""
    own, server = -1.0, 2.0
    made, due = np.sign(own) + np.sign(server - own), np.sign(server)
    return Evidence("counter-example", bool(made != due), f"sign rule: {made:g} after correction, {due:g} due")
