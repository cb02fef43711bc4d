"""Claims of the text with numbers, and Table 1: communication, rates, speed-ups."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Final

import sympy as sp
from scipy import optimize
from sympy import sqrt

from decomfl_lab.models.registry import build_model, num_parameters
from decomfl_lab.runs.configuration import TrainConfig
from theory.bounds import statement
from theory.communication import TABLE_1, expected_numbers, expected_traffic
from theory.findings.corrections import MENDED
from theory.findings.decorators import mends, refutes, supports
from theory.findings.evidence import algorithms
from theory.findings.evidence.algorithms import PROGRAMS, AlgorithmLine, outcome, play
from theory.findings.finding import Evidence, by_role
from theory.findings.instruments import equal
from theory.notation import symbols as s
from theory.notation.formula import written
from theory.notation.setting import Setting, second_moment_factor
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum

# Communication.


def config_of(method: str, *, R: int = 1000, M: int = 100, m: int = 10, K: int = 1, P: int = 5) -> TrainConfig:
    """A run of the method at these sizes, a seed for each direction."""
    ours = TrainConfig(clients=M, sampled=m, rounds=R, local_steps=K, perturbations=P, seeds="per-direction")
    return ours.but(method)


@mends("line-134", "line-179", "line-184")
@supports("line-919", "line-249")
def dimension_free(method: str = "decomfl") -> Evidence:
    config = config_of(method)
    sizes = [expected_traffic(config, d).scalars for d in (10**3, 10**9)]
    dense = [expected_traffic(config_of("fedavg"), d).scalars for d in (10**3, 10**9)]
    return Evidence(
        "arithmetic",
        sizes[0] == sizes[1] and math.isclose(dense[1], 1e6 * dense[0]),
        f"scalars a client in {config.rounds} rounds: {sizes[0]:.0f} for d = 10³, {sizes[1]:.0f} for d = 10⁹; FedAvg "
        f"{dense[0]:.3g}, {dense[1]:.3g}",
        {"ours": sizes[0], "rounds": config.rounds, "least d": 10**3, "most d": 10**9, "FedAvg": dense[0]},
    )


def records_sent() -> dict[tuple[int, int], int]:
    """Client and round of a run of Algorithms 1 and 2 -> records of local steps that the client is sent then."""
    server = PROGRAMS["Algorithm 1"].server
    rebuild = next(line.code for line in server if line.label == "line-306")
    program = replace(PROGRAMS["Algorithm 1"], server=(AlgorithmLine("", 0, "sent = {}"), *server))
    sent: dict[tuple[int, int], int] = play(program, {"line-306": f"{rebuild}\nsent[i, r] = len(missed)"})["sent"]
    return sent


@supports("line-498")
def lags_differ() -> Evidence:
    """Clients that missed rounds are sent more records than others."""
    sizes = sorted(set(records_sent().values()))
    listed = " or ".join(map(str, sizes))
    says = f"Algorithms 1 and 2, K = {algorithms.K}: a sampled client is sent {listed} pairs of seed and scalar"
    return Evidence("execution", len(sizes) > 1, says)


@refutes("line-134", "line-179", "line-286", cause="downlink", witness=True)
def lag() -> Evidence:
    """The same, against what the paper says of the downlink."""
    return lags_differ()


@mends("line-179")
def mean_lag() -> Evidence:
    """Records that a client is sent, by times that it is sampled: a lag of M/m rounds on average."""
    M, m, R = 100, 10, 100_000
    lag = expected_numbers(R, M=M, m=m, K=1, P=1).down / (R * m / M)
    mended = MENDED["line-179"].value({"K": 1, "P": 1, "M": M, "m": m})
    holds = math.isclose(2 * lag, mended, rel_tol=1e-3)
    return Evidence("arithmetic", holds, f"M = {M}, m = {m}: {lag:.3f} rounds on average")


def full_models(method: str) -> Evidence:
    R, d = 50, 1000
    scalars = expected_traffic(config_of(method, R=R, M=4, m=4), d).scalars / R
    return Evidence(
        "arithmetic", scalars == 2 * d, f"{method}, scalars a sampled client and round: {scalars:g}, d = {d}"
    )


@supports("line-208", "line-270.2")
def baffle() -> Evidence:
    R, d, P = 50, 1000, 5
    traffic = expected_traffic(config_of("baffle", R=R, M=4, m=4, P=P), d)
    return Evidence(
        "arithmetic",
        (traffic.up_scalars / R, traffic.down_scalars / R) == (P, d),
        f"a sampled client of BAFFLE and round: {traffic.up_scalars / R:g} up, {traffic.down_scalars / R:g} down, "
        f"d = {d}, P = {P}",
    )


@supports("line-845")
def same_as_projection() -> Evidence:
    ours, other = (expected_traffic(config_of(method), 1000) for method in ("decomfl", "decomfl-projection"))
    return Evidence("arithmetic", ours == other, f"bytes a client: {ours.bytes:.0f} and {other.bytes:.0f}")


@supports("line-499", "line-501.2")
@mends("line-501")
def records() -> Evidence:
    M, m, K, P, R = 100, 10, 2, 5, 100_000
    sent = expected_numbers(R, M=M, m=m, K=K, P=P)
    records, replies = 2 * M * sent.down / R, M * sent.up / R
    return Evidence(
        "arithmetic",
        0.999 < records / (2 * M * K * P) <= 1 and math.isclose(replies, m * K * P),
        f"M = {M}, m = {m}, K = {K}, P = {P}: records {records:.2f} words a round, 2MKP = {2 * M * K * P}; replies "
        f"{replies:g}, mKP = {m * K * P}",
    )


@refutes("line-501", cause="downlink")
def short_run() -> Evidence:
    """Records a round as a multiple of 2MKP in runs in which few clients are sampled often."""
    runs = {
        (M, m, R): expected_numbers(R, M=M, m=m, K=1, P=1).down / R for M, m, R in ((100, 10, 100), (1000, 1, 1000))
    }
    listed = ", ".join(f"{ratio:.2f} at (M, m, R) = {run}" for run, ratio in runs.items())
    return Evidence("arithmetic", max(runs.values()) < 0.95, f"records a round over 2MKP: {listed}")


@supports("line-500")
def all_records() -> Evidence:
    sent = records_sent()
    received = {(i, r): sum(n for (j, q), n in sent.items() if j == i and q <= r) for i, r in sent}
    wrong = [f"client {i} {n} by round {r}" for (i, r), n in received.items() if n != r * algorithms.K]
    return Evidence(
        "execution",
        not wrong,
        f"clients sampled in round r of Algorithm 1 have got rK pairs of seed and scalar; not: {wrong}",
    )


@supports("line-843")
def server_of_projection() -> Evidence:
    as_printed, with_other = (
        outcome(PROGRAMS["Algorithm 5"]),
        outcome(replace(PROGRAMS["Algorithm 5"], server=PROGRAMS["Algorithm 3"].server)),
    )
    return Evidence(
        "execution",
        not as_printed and bool(with_other),
        f"Algorithm 5 with the server of Algorithm 1: {as_printed or 'every model equals the recursion'}; with that of "
        f"Algorithm 3: {with_other or 'likewise'}",
    )


@supports("line-963")
def sparse() -> Evidence:
    """Top-k of 1 % of the larger CNN against DeComFL with K = 10, P = 200; scalars a client and round, both ways."""
    d, R = 1_206_590, 1000
    top = expected_traffic(config_of("fedavg-topk", R=R).but(top_k=0.01), d).scalars / R
    ours = sum(astuple(expected_numbers(R, M=100, m=10, K=10, P=200))) / R
    return Evidence(
        "arithmetic", top > 10 * ours, f"FedAvg + Top 1 %: {top:.0f} scalars a client and round, DeComFL {ours:.0f}"
    )


@refutes("line-477.2", cause="downlink")
def plans() -> Evidence:
    M, m, K, P, R = 100, 10, 1, 5, 100_000
    sent = expected_numbers(R, M=M, m=m, K=K, P=P)
    down, printed = M * (sent.down + sent.seeds) / R, 2 * M * K * P
    mended = MENDED["line-477.2"].value({"M": M, "m": m, "K": K, "P": P})
    return Evidence(
        "arithmetic",
        down > 1.01 * printed and math.isclose(down, mended, rel_tol=1e-3),
        f"M = {M}, m = {m}, P = {P}: {down:.1f} words down a round, 2MKP = {printed}, (2M + m)KP = {mended:g}",
    )


@supports("tab-comm-comparison")
def products() -> Evidence:
    """Complexity = words a round · rounds, up to a factor that is a number."""
    factors = {
        f"{name} {way}": sp.simplify(each.doit() * row.rounds.doit() / total.doit())
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


def rounds_to(row: str) -> Evidence:
    """R at which the printed rate of a row is ε."""
    rate = _PRINTED_RATES[row]
    solved = sp.solve(sp.Eq(rate.doit(), s.epsilon), s.R)[0]
    return equal(solved, TABLE_1[row].rounds, f"rounds to {written(rate)} = ε against those of {row}")


@supports("line-505")
def powers_of_the_dimension() -> Evidence:
    """The largest power of d in what the rows of Table 1 send in all, both ways."""
    powers = {
        name: int(sp.Poly((row.uplink_complexity + row.downlink_complexity).doit(), s.d).degree())
        for name, row in TABLE_1.items()
        if not name.startswith("DeComFL")
    }
    listed = ", ".join(f"{name} {power}" for name, power in powers.items())
    return Evidence("algebra", set(powers.values()) == {1, 2}, f"largest power of d in the whole cost: {listed}")


# Rates.


@lru_cache(maxsize=64)
def best_average(
    *,
    d: int = 1,
    K: int = 1,
    P: int = 1,
    m: int = 1,
    M: int = 1,
    sigma: float = 0.0,
    sigma_G: float = 0.0,
    distribution: str = "gaussian",
) -> float:
    """The least (1/R) Σ E‖∇f(x_r)‖² over all η, of f_i = ½‖x‖² − b_iᵀx, D = 1, R = 10⁴, μ → 0; exact."""
    problem = Quadratic.of(Spectrum.flat(d), D=1.0, sigma=sigma, sigma_G=sigma_G)

    def average(log_eta: float) -> float:
        setting = problem.setting(eta=math.exp(log_eta), m=m, M=M, P=P, K=K, R=_ROUNDS, distribution=distribution)
        return expected(problem, setting).average

    largest = -math.log(K * second_moment_factor(distribution, d=d, P=P))
    least = optimize.minimize_scalar(average, bounds=(largest - 10, largest), method="bounded", options={"xatol": 1e-3})
    return min(float(least.fun), average(largest))


_ROUNDS: Final = 10_000

# What there is more of -> the best average with so many of it; σ = 1 or σ_G = 1, the other 0.
AVERAGES: Final[Mapping[str, Callable[[int], float]]] = {
    "K, clients differ": lambda n: best_average(K=n, M=2, sigma_G=1.0),
    "K, clients differ, d = 1000": lambda n: best_average(K=n, M=2, sigma_G=1.0, d=1000),
    "K, clients alike": lambda n: best_average(K=n, sigma=1.0),
    "P": lambda n: best_average(P=n, sigma=1.0),
    "P, d = 1000": lambda n: best_average(P=n, sigma=1.0, d=1000),
    "K, clients differ, z = ±1": lambda n: best_average(K=n, M=2, sigma_G=1.0, distribution="rademacher"),
    "P, z = ±1": lambda n: best_average(P=n, sigma=1.0, distribution="rademacher"),
    "m": lambda n: best_average(m=n, M=n, sigma=1.0),
}


def speedup(name: str, few: int, many: int, *, holds: bool) -> Evidence:
    """How much the best average falls from few to many of something, against √(many/few)."""
    before, after, claimed = AVERAGES[name](few), AVERAGES[name](many), math.sqrt(many / few)
    return Evidence(
        "counter-example",
        (before / after > 0.75 * claimed) is holds,
        f"{name}, {few} -> {many}: the least average of E‖∇f‖² over all η falls {before / after:.3g} times, from "
        f"{before:.4g} to {after:.4g}; claimed {claimed:.3g} (½‖x‖² − b_iᵀx, D = 1, R = 10⁴)",
        {"before": before, "after": after, "ratio": before / after, "claimed": claimed, "few": few, "many": many},
    )


def mended(name: str, distribution: str, *cases: tuple[int, int]) -> Evidence:
    """A corrected bound on the same problems, at its best η, for pairs of K and P."""
    theorem, worst = statement(name), 0.0
    problem = Quadratic.of(Spectrum.flat(1), D=1.0, sigma=1.0, sigma_G=1.0)
    for K, P in cases:
        setting = problem.setting(m=1, M=2, P=P, K=K, R=_ROUNDS, distribution=distribution)
        setting = replace(setting, eta=theorem.best_eta(setting))
        worst = max(worst, expected(problem, setting).average / sum(theorem.bound(setting)))
    return Evidence("search", worst <= 1, f"corrected {name} at these K and P: left/right at most {worst:.3g}")


@refutes("line-477.3", cause="rates-of-others", witness=True)
@by_role
def one_long_step() -> Evidence:
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


@mends("line-136", "line-184")
def flat_in_dimension() -> Evidence:
    """The corrected Theorem 2 at its best η, κ = 10, μ → 0, for d from 10³ to 10⁹."""
    bounds = []
    for d in (10**3, 10**6, 10**9):
        setting = Setting(d=d, L=1.0, m=2, M=8, P=5, R=2000, sigma=1.0, sigma_G=1.0, kappa=10.0, distribution="sphere")
        theorem = statement("theorem-2")
        bounds.append(sum(theorem.bound(replace(setting, eta=theorem.best_eta(setting)))))
    listed = ", ".join(f"{bound:.6g}" for bound in bounds)
    return Evidence("search", max(bounds) < 1.01 * min(bounds), f"bound at the best η for d = 10³, 10⁶, 10⁹: {listed}")


@supports("line-673", "line-673.2")
def linear_in_directions() -> Evidence:
    one, two = (sum(astuple(expected_numbers(1000, M=100, m=10, K=1, P=P))) for P in (5, 10))
    spread = [second_moment_factor("gaussian", d=1000, P=P) - 1 for P in (5, 10)]
    return Evidence(
        "arithmetic",
        math.isclose(two, 2 * one) and math.isclose(spread[0], 2 * spread[1]),
        f"P = 5 -> 10: words {one:.0f} -> {two:.0f}, E‖G‖²/‖∇f‖² − 1 {spread[0]:.4g} -> {spread[1]:.4g}",
    )


@refutes("line-558", cause="outputs", witness=True)
def ten_outputs() -> Evidence:
    """The larger CNN with an output for each of the ten classes of Fashion-MNIST."""
    count = num_parameters(build_model("cnn-fashion-10", seed=0, in_shape=(1, 28, 28), classes=10))
    return Evidence("execution", count != 1_206_590, f"with 10 outputs it has {count} parameters, printed 1206590")


def parameters(name: str, d: int) -> Evidence:
    count = num_parameters(build_model(name, seed=0, in_shape=(1, 28, 28), classes=10))
    return Evidence("execution", count == d, f"{name} has {count} parameters, printed {d}")


def within(what: str, printed: float, computed: float, digits: int) -> Evidence:
    """Evidence that a number of the text is the computed one, rounded to so many digits."""
    return Evidence(
        "arithmetic", float(f"{computed:.{digits}g}") == printed, f"{what} = {computed:.6g}, printed {printed:g}"
    )


with sp.evaluate(False):  # to be printed as written here
    _PRINTED_RATES: Final = {
        "FedAvg": sqrt(1 / (s.m * s.K * s.R)),
        "DeComFL": sqrt(s.d / (s.m * s.P * s.K * s.R)),
        "DeComFL, low rank": sqrt(s.kappa / (s.m * s.P * s.R)),
    }
