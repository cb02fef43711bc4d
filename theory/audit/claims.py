"""Claims of the text with numbers, and Table 1: communication, rates, speed-ups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import lru_cache, partial
from typing import Final

import sympy as sp
from scipy import optimize
from sympy import sqrt

from decomfl_lab.models.registry import build_model, num_parameters
from decomfl_lab.runs.config import TrainConfig
from theory import symbols as s
from theory.audit import algorithms
from theory.audit.algorithms import PROGRAMS, Line, outcome, play
from theory.audit.entry import Entry, Evidence
from theory.audit.instruments import equal
from theory.bounds import statement
from theory.communication import TABLE_1, expected_numbers, expected_traffic
from theory.formula import written
from theory.problems.quadratic import Quadratic, expected
from theory.problems.spectrum import Spectrum
from theory.setting import Setting, second_moment_factor

__all__ = ["ENTRIES", "best_average"]

# Communication.


def _config(method: str, *, R: int = 1000, M: int = 100, m: int = 10, K: int = 1, P: int = 5) -> TrainConfig:
    ours = TrainConfig(clients=M, sampled=m, rounds=R, local_steps=K, perturbations=P, seeds="per-direction")
    return ours.but(method)


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


def _records_sent() -> dict[tuple[int, int], int]:
    """Client and round of a run of Algorithms 1 and 2 -> records of local steps that the client is sent then."""
    server = PROGRAMS[0].server
    rebuild = next(line.code for line in server if line.label == "line-306")
    program = replace(PROGRAMS[0], server=(Line(label="", says="", depth=0, code="sent = {}"), *server))
    sent: dict[tuple[int, int], int] = play(program, {"line-306": f"{rebuild}\nsent[i, r] = len(missed)"})["sent"]
    return sent


def _lag() -> Evidence:
    sizes = sorted(set(_records_sent().values()))
    return Evidence(
        "execution", len(sizes) > 1, f"a sampled client is sent {sizes} pairs of seed and scalar, K = {algorithms.K}"
    )


def _mean_lag() -> Evidence:
    """Records that a client is sent, by times that it is sampled: a lag of M/m rounds on average."""
    M, m, R = 100, 10, 100_000
    lag = expected_numbers(R, M=M, m=m, K=1, P=1).down / (R * m / M)
    return Evidence(
        "arithmetic", math.isclose(lag, M / m, rel_tol=1e-3), f"M = {M}, m = {m}: {lag:.3f} rounds on average"
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
    sent = _records_sent()
    received = {(i, r): sum(n for (j, q), n in sent.items() if j == i and q <= r) for i, r in sent}
    wrong = [f"client {i} {n} by round {r}" for (i, r), n in received.items() if n != r * algorithms.K]
    return Evidence(
        "execution",
        not wrong,
        f"clients sampled in round r of Algorithm 1 have got rK pairs of seed and scalar; not: {wrong}",
    )


def _server_of_projection() -> Evidence:
    own, other = outcome(PROGRAMS[4]), outcome(replace(PROGRAMS[4], server=PROGRAMS[2].server))
    return Evidence(
        "execution",
        not own and bool(other),
        f"Algorithm 5 with the server of Algorithm 1: {own or 'every model equals the recursion'}; with that of "
        f"Algorithm 3: {other or 'likewise'}",
    )


def _sparse() -> Evidence:
    """Top-k of 1 % of the larger CNN against DeComFL with K = 10, P = 200; scalars a client and round, both ways."""
    d, R = 1_206_590, 1000
    top = expected_traffic(_config("fedavg-topk", R=R).but(top_k=0.01), d).scalars / R
    ours = sum(astuple(expected_numbers(R, M=100, m=10, K=10, P=200))) / R
    return Evidence(
        "arithmetic", top > 10 * ours, f"FedAvg + Top 1 %: {top:.0f} scalars a client and round, DeComFL {ours:.0f}"
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


def _rounds_to(rate: sp.Expr, row: str) -> Evidence:
    """R at which a rate in R is ε."""
    solved = sp.solve(sp.Eq(rate.doit(), s.epsilon), s.R)[0]
    return equal(solved, TABLE_1[row].rounds, f"rounds to {written(rate)} = ε against those of {row}")


def _threshold() -> Evidence:
    ratio = TABLE_1["DeComFL, low rank"].downlink_complexity / TABLE_1["FedAvg"].downlink_complexity
    return equal(ratio, s.kappa / (s.m * s.d / (s.M * s.K)), "DeComFL's downlink over FedAvg's, κ/(md/(MK))")


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
    "K, clients differ, z = ±1": lambda n: best_average(K=n, M=2, sigma_G=1.0, distribution="rademacher"),
    "P, z = ±1": lambda n: best_average(P=n, sigma=1.0, distribution="rademacher"),
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


def _mended(name: str, distribution: str, *cases: tuple[int, int]) -> Evidence:
    """A corrected bound on the same problems, at its best η, for pairs of K and P."""
    theorem, worst = statement(name), 0.0
    problem = Quadratic.of(Spectrum.flat(1), D=1.0, sigma=1.0, sigma_G=1.0)
    for K, P in cases:
        setting = problem.setting(m=1, M=2, P=P, K=K, R=_ROUNDS, distribution=distribution)
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
        setting = Setting(d=d, L=1.0, m=2, M=8, P=5, R=2000, sigma=1.0, sigma_G=1.0, kappa=10.0, distribution="sphere")
        theorem = statement("theorem-2")
        bounds.append(sum(theorem.bound(replace(setting, eta=theorem.best_eta(setting)))))
    listed = ", ".join(f"{bound:.6g}" for bound in bounds)
    return Evidence("search", max(bounds) < 1.01 * min(bounds), f"bound at the best η for d = 10³, 10⁶, 10⁹: {listed}")


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
    return Entry(label=label, line=line, kind="claim", says=says, finding="correct", checks=checks)


_CLAIMS: Final = (
    _claim("line-134", "O(d) -> O(1): what is sent does not depend on d", _dimension_free),
    Entry(
        label="line-135",
        line=135,
        kind="claim",
        says="State-of-the-art rates with linear speed-up in the number of clients and of local steps",
        finding="false",
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
        finding="false",
        checks=(_dimension_free, _lag, _mean_lag),
        why="it does not depend on d, but downwards it is 2KP for every round that the client missed: unbounded",
        fix="a number that does not depend on d; downwards 2KP·M/m on average",
    ),
    Entry(
        label="line-181",
        line=181,
        kind="claim",
        says="O(√(d/(mPKR))) under the standard conditions",
        finding="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _CLIENTS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS, _MENDED_RATE),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="O(√((1 + d/P)(σ² + σ_G²)/(mKR))) for K ≤ d/P",
    ),
    Entry(
        label="line-182",
        line=182,
        kind="claim",
        says="Linear speed-up in local steps, directions and clients",
        finding="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _CLIENTS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS, _MENDED_RATE),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="linear speed-up in clients; in P up to d, in K up to d/P",
    ),
    Entry(
        label="line-183",
        line=183,
        kind="claim",
        says="O(√(κ/(mPR))) under the κ-effective rank assumption",
        finding="does not follow",
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
    _claim("line-843", "The server of gradient projection is that of Algorithm 1", _server_of_projection),
    _claim("line-845", "Gradient projection has the communication of DeComFL", _same_as_projection),
    _claim("line-919", "DeComFL's communication does not depend on what is fine-tuned", _dimension_free),
    _claim("line-963", "FedAvg + Top-k of 1 % still needs far more communication than DeComFL", _sparse),
    Entry(
        label="line-948",
        line=948,
        kind="claim",
        says="OPT models of four sizes all converge around round 1250",
        finding="not checkable",
        checks=(),
        why="read off a figure, with another learning rate for each model; no criterion of convergence is given",
    ),
)

with sp.evaluate(False):  # to be printed as written here
    _PRINTED_RATES: Final = {
        "FedAvg": sqrt(1 / (s.m * s.K * s.R)),
        "DeComFL": sqrt(s.d / (s.m * s.P * s.K * s.R)),
        "DeComFL, low rank": sqrt(s.kappa / (s.m * s.P * s.R)),
    }

_TABLE: Final = (
    Entry(
        label="tab-comm-comparison",
        line=477,
        kind="table",
        says="Table 1: communication = a round's · rounds; rounds from the rates √(1/(mKR)), √(d/(mPKR)), √(κ/(mPR))",
        finding="correct",
        checks=(
            _products,
            *(partial(_rounds_to, rate, row) for row, rate in _PRINTED_RATES.items()),
        ),
    ),
    Entry(
        label="line-477.2",
        line=477,
        kind="table",
        says="Table 1, downlink a round: 2MKP and 2MP",
        finding="false",
        checks=(_plans,),
        why="the seeds of the round's own local steps go to m clients too, though records repeat them",
        fix="(2M + m)KP and (2M + m)P",
    ),
    Entry(
        label="line-477.3",
        line=477,
        kind="table",
        says="Table 1, rounds of FedAvg and FedCom: O(1/(mKε²)) with m of M clients sampled",
        finding="false",
        checks=(_one_long_step, _ALIKE),
        why="on ½(x − c_i)² K local steps are one longer step: whatever K, the same models can be reached in R rounds",
        fix="O(1/(mKε²)) if clients are alike or all take part",
    ),
    Entry(
        label="line-477.4",
        line=477,
        kind="table",
        says="Table 1, rounds of DeComFL: O(d/(mPKε²))",
        finding="false",
        checks=(_LOCAL_STEPS, _DIRECTIONS, _FEW_LOCAL_STEPS, _FEW_DIRECTIONS, _MENDED_RATE),
        why=f"{_WHY_K}; {_WHY_P}",
        fix="O((1 + d/P)/(mKε²)) for K ≤ d/P",
    ),
    Entry(
        label="line-477.5",
        line=477,
        kind="table",
        says="Table 1, rounds of FedZO: O(d/(mPKε²))",
        finding="false",
        checks=(
            partial(_speedup, "K, clients differ, z = ±1", 10, 400, holds=False),
            partial(_speedup, "P, z = ±1", 100, 10_000, holds=False),
        ),
        why=f"{_WHY_K}; {_WHY_P}. For d = 1, z = ±1 all z zᵀ are 1: FedZO, whose clients have directions of their own, "
        "takes DeComFL's steps",
        fix="no better than DeComFL's in K and P",
    ),
)

ENTRIES: Final = (*_CLAIMS, *_TABLE)
