"""Sentences of abstract, introduction, related work and Sections 3 to 5: quantifiers, reasons, names, attributions."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from dataclasses import replace

import numpy as np
import sympy as sp

from decomfl_lab.noise import direction
from theory.bounds import STATEMENTS, statement
from theory.communication import TABLE_1, expected_traffic
from theory.findings.data import RAW
from theory.findings.decorators import mends, refutes, supports
from theory.findings.evidence import algorithms
from theory.findings.evidence.claims import config_of, records_sent, server_of_projection
from theory.findings.finding import Evidence
from theory.findings.instruments import equal
from theory.notation import symbols as s
from theory.notation.formula import names_in
from theory.notation.setting import Setting, second_moment_factor

# What others send, and what DeComFL does.


def by_dimension(method: str) -> Evidence:
    """Scalars a client for two dimensions."""
    small, large = (expected_traffic(config_of(method), d).scalars for d in (10**5, 10**7))
    says = f"{method}, scalars a client in 1000 rounds: {small:.4g} for d = 10⁵, {large:.4g} for 10⁷"
    return Evidence("arithmetic", math.isclose(large, 100 * small, rel_tol=1e-3), says)


# A scalar and a direction known beforehand are all there is to ⟨∇f, z⟩z too: one server serves both.
refutes("line-159", cause="quantifiers", witness=True)(server_of_projection)


@supports("line-268", "line-270")
def uplink() -> Evidence:
    K, P, R = 3, 5, 100
    sent = [expected_traffic(config_of("decomfl", R=R, M=4, m=4, K=K, P=P), d).up_scalars / R for d in (10**3, 10**9)]
    says = f"scalars up, a sampled client and round: {sent[0]:g} for d = 10³, {sent[1]:g} for 10⁹; KP = {K * P}"
    return Evidence("arithmetic", sent == [K * P, K * P], says)


@supports("line-442.3")
def steps_save_nothing() -> Evidence:
    """K local steps are K times the words a round and a Kth of the rounds."""
    total = TABLE_1["DeComFL"].uplink_complexity.doit()
    at_any_K = sp.Rational(0) if s.K in total.free_symbols else total
    fedavg = TABLE_1["FedAvg"].uplink_complexity.doit()
    holds = at_any_K == total and equal(fedavg * s.K, fedavg.subs(s.K, 1), "").holds
    return Evidence("algebra", holds, f"uplink in all: {total} for DeComFL, {fedavg} for FedAvg")


# Directions and estimates.


@supports("line-256", "line-267")
def reproduced() -> Evidence:
    """Directions made twice of one seed, the second time in two pieces."""
    wrong = []
    for d in (2, 1000, 1_206_590):
        whole, half = direction(7, 0, d), d // 2
        again = np.concatenate([direction(7, 0, d, count=half), direction(7, 0, d, first=half)])
        wrong += [d] * (not np.array_equal(whole, again) or np.array_equal(whole, direction(8, 0, d)))
    return Evidence(
        "execution", not wrong, f"d = 2, 1000, 1206590: one seed makes one vector, another another; not: {wrong}"
    )


def top_one(*, by_magnitude: bool) -> Evidence:
    """The largest of (−1, −1, 0.1) kept: what is left of ‖x‖² against the 1 − k/d that the method's theory needs."""
    x = np.array([-1.0, -1.0, 0.1])
    kept = int(np.argmax(np.abs(x) if by_magnitude else x))
    left, needed = float((np.delete(x, kept) ** 2).sum()), 2 / 3 * float((x**2).sum())
    by = "magnitude" if by_magnitude else "value"
    says = f"x = (−1, −1, 0.1), k = 1, by {by}: {left:.3g} left, (1 − k/d)‖x‖² = {needed:.3g}"
    return Evidence("counter-example", (left <= needed) is by_magnitude, says)


# The algorithm.


@refutes("line-355", cause="reasons", witness=True)
def rebuild_of_the_present() -> Evidence:
    """Records that clients get who took part in the round before: they reverted, so they rebuild like the others."""
    sent, drawn = records_sent(), algorithms.SAMPLED
    present = []  # pairs sent in round r to who took part in round r − 1 too
    for r in range(1, algorithms.R):
        present += [sent[i, r] for i in drawn[r] if i in drawn[r - 1]]
    says = f"clients that took part in round r − 1 too are sent {min(present)} pairs in round r, K = {algorithms.K}"
    return Evidence("execution", min(present) == algorithms.K, says)


@mends("line-355")
@supports("line-356")
def gap_filled() -> Evidence:
    """The records that a client is sent against K times the rounds since its last."""
    wrong, last = [], dict.fromkeys(range(1, algorithms.M + 1), 0)
    for (i, r), pairs in sorted(records_sent().items(), key=lambda each: each[0][1]):
        wrong += [(i, r)] * (pairs != algorithms.K * (r - last[i]))
        last[i] = r
    return Evidence("execution", not wrong, f"a client is sent K pairs for each round since its last; not: {wrong}")


@refutes("line-352", cause="two-sentences", witness=True)
def kept_by_clients() -> Evidence:
    """Algorithm 1 with each t_i written by its client, who reports it, and seeds that are made of r and k again."""
    changes = {
        "line-306": "missed = list(product(range(t[i], r), steps))\n"
        "rebuild(i, {key: scalars[key] for key in missed}, {key: seed(*key) for key in missed})\n"
        "t[i] = r",
        "line-311": "for k in steps: scalars[r, k] = g[r, k]",
    }
    broken = algorithms.outcome(algorithms.PROGRAMS["Algorithm 1"], changes)
    says = broken or "every model equals the recursion's"
    return Evidence("execution", not broken, f"clients report their last round, seeds are made of (r, k): {says}")


# The theorems.


@supports("line-368")
def with_directions() -> Evidence:
    named = {each.source: each for each in STATEMENTS.values() if each.variant == "stated"}
    without = [label for label in ("the.1", "coro-1", "the.2", "line-1448")
               if not any("P" in names_in(term) for term in named[label].terms.values())]  # fmt: skip
    return Evidence(
        "algebra", not without, f"Theorems 1, 2 and 5 and Corollary 1 have P in their bounds; not: {without}"
    )


@refutes("line-382", cause="quantifiers")
def never_proved() -> Evidence:
    """What of Section 4.1's theorems and corollary is stated again in Appendix D, where the proofs are."""
    stated = [raw["label"] for raw in RAW if raw["kind"] in ("theorem", "corollary") and "Section" in raw["place"]]
    proved = {raw.get("restates") for raw in RAW if "Appendix D" in raw["place"]}
    missing = [label for label in stated if label not in proved]
    return Evidence("table", missing == ["coro-1"], f"of {', '.join(stated)}, not taken up in Appendix D: {missing}")


@refutes("line-415", cause="smoothing-terms")
def largest_is_the_fourth() -> Evidence:
    """Terms of Theorem 1 at its largest η, d = 1.3·10⁹, m = 2, P = 10, K = 1, σ = σ_G = L = 1, μ = 10⁻³."""
    here = Setting(d=1_300_000_000, L=1.0, m=2, M=8, P=10, R=2000, mu=1e-3, sigma=1.0, sigma_G=1.0, D=1.0)
    each = statement("theorem-1", "stated")
    terms = each.bound(replace(here, eta=each.step_sizes(here).largest))
    named = dict(zip(each.terms, terms, strict=True))
    listed = ", ".join(f"{name} {value:.3g}" for name, value in named.items())
    middle = named["dissimilarity"] + named["noise"]
    return Evidence(
        "arithmetic",
        named["smoothing"] > 1e6 * middle,
        f"OPT-1.3B, μ = 10⁻³, σ = σ_G = L = 1: {listed}",
        {**named, "ratio": named["smoothing"] / middle},
    )


@supports("line-426")
def variance_and_drift() -> Evidence:
    """E‖Z(v − w)‖²/‖v − w‖² = ρ of two clients that share Z, and Σ_k of the drift's bound for a larger K."""
    apart = [second_moment_factor("gaussian", d=1000, P=P) for P in (1, 10, 100)]
    here = Setting(d=1000, L=1.0, m=2, M=8, P=10, eta=1e-6, sigma_G=1.0)
    drift = [sum(statement("local-drift").bound(replace(here, K=K), a=1.0)) / K for K in (1, 10, 100)]
    says = (
        f"P = 1, 10, 100: mean square between clients {apart[0]:.3g}, {apart[1]:.3g}, {apart[2]:.3g} times ‖v − w‖²; "
    )
    says += f"K = 1, 10, 100: drift a step at most {drift[0]:.3g}, {drift[1]:.3g}, {drift[2]:.3g}"
    return Evidence("arithmetic", apart == sorted(apart)[::-1] and drift == sorted(drift), says)


@supports("line-432")
def tighter() -> Evidence:
    """Terms without μ of Theorem 2 and of Theorem 1 for K = 1, κ = 10, each at its best η."""
    here = Setting(d=10**6, L=1.0, m=2, M=8, P=5, R=2000, sigma=1.0, sigma_G=1.0, kappa=10.0, distribution="sphere")
    low, plain = (sum(each.bound(replace(here, eta=each.best_eta(here)))) for each in
                  (statement("theorem-2"), statement("theorem-1-single")))  # fmt: skip
    return Evidence(
        "arithmetic", low < 0.1 * plain, f"d = 10⁶, κ = 10, μ → 0: {low:.3g} with low rank, {plain:.3g} without"
    )


@refutes("line-442.4", cause="two-sentences")
def one_step_only() -> Evidence:
    """Local steps of Figure 2."""
    steps, covered = (1, 4, 10), statement("theorem-2", "stated").single_step
    beyond = [K for K in steps if K > 1]
    return Evidence("table", covered and len(beyond) > 1, f"Theorem 2 is for K = 1; Figure 2 has K = {steps}")


@refutes("line-516", cause="formula-slips")
def subsets_and_clients() -> Evidence:
    subsets, sampled = 100, round(0.1 * 100)
    return Evidence("arithmetic", subsets > sampled, f"{subsets} subsets, {sampled} sampled clients in a round",
                    {"subsets": subsets, "sampled": sampled})  # fmt: skip
