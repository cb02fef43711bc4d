"""The clauses of the appendices: reasons given for steps, most of which are decided by the checks of the steps."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

from itertools import product
from typing import Any

import numpy as np
import sympy as sp

from decomfl_lab.methods.memory import ROLES
from theory.bounds import statement
from theory.findings.decorators import context, mends, refutes, supports
from theory.findings.evidence.algorithms import PROGRAMS, UndefinedError, outcome, play
from theory.findings.evidence.claims import records_sent
from theory.findings.evidence.displays import told_by_scalars, without_the_last_line
from theory.findings.evidence.prose import kept_by_clients
from theory.findings.evidence.tables import lora_gains
from theory.findings.evidence.theorem_two import kappa_in_few_products
from theory.findings.finding import Evidence
from theory.findings.instruments import equal, unlike
from theory.notation.printed import EXAMPLES, LORA, LORA_PARAMETERS, MOST_FREQUENT, PARAMETERS

# Checks that speak the other way here.

supports("line-738", "line-742.2")(told_by_scalars)
refutes("line-941.2", "line-946.2", cause="reasons")(kappa_in_few_products)
refutes("line-946", cause="two-sentences")(kappa_in_few_products)

# Appendices A and B.


@supports("line-625.3")
def forward_only() -> Evidence:
    names = ("Algorithm 1", "Algorithm 3")
    broken = [name for name in names if "gradient(" in PROGRAMS[name].text() or outcome(PROGRAMS[name])]
    return Evidence("execution", not broken, f"Algorithms 1 to 4 run on values of f alone; not: {broken}")


@supports("line-625.4")
def dissimilarity_stays() -> Evidence:
    terms = {name: term.doit() for name, term in statement("theorem-1", "stated").terms.items()}
    rounds = sp.Symbol("R", positive=True)
    left = [name for name, term in terms.items() if sp.limit(term, rounds, sp.oo) != 0]
    return Evidence(
        "algebra", "dissimilarity" in left, f"R → ∞: of the bound of Theorem 1 there stay {', '.join(left)}"
    )


@refutes("line-672", cause="loose-words")
def weights() -> Evidence:
    """The weights g/P of the directions of a step, in a run of Algorithm 4."""
    world = play(PROGRAMS["Algorithm 4"])
    P, g = world["P"], world["g"]
    steps = [[g[r, k, p] / P for p in range(1, P + 1)] for r, k in product(range(world["R"]), range(1, world["K"] + 1))]
    sums = [sum(each) for each in steps]
    least = min(min(each) for each in steps)
    says = (
        f"Algorithm 4, weights of {P} directions in {len(steps)} steps: sums {min(sums)} to {max(sums)}, least {least}"
    )
    return Evidence("execution", least < 0 and 1 not in sums, says)


@refutes("line-673.3", cause="loose-words")
def sum_kept() -> Evidence:
    """Whether the local steps of Algorithms 2 and 4 have a sum of directions beside the model."""
    kept = {name: "delta" in PROGRAMS[name].text() for name in ("Algorithm 2", "Algorithm 4")}
    says = f"a vector Δ beside the model, in the lines of the two algorithms: {kept}"
    return Evidence("execution", kept == {"Algorithm 2": False, "Algorithm 4": True}, says)


supports("line-767.2")(without_the_last_line, "Algorithm 3", "line-767")


def discarding(kept: str, *, works: bool) -> Evidence:
    """Algorithm 1 whose server keeps some records alone after each round; client 3 misses the first three rounds."""
    changes = {
        "line-304": "C[r] = [(1, 2), (1, 2), (1, 2), (2, 3)][r]\ns = {(r, k): seed(r, k) for k in steps}",
        "line-311": "for k in steps: scalars[r, k], seeds[r, k] = g[r, k], s[r, k]\n"
        "for i in C[r]: t[i] = r\n"
        f"for q, k in [*scalars]:\n    if not ({kept}): del scalars[q, k]",
    }
    try:
        play(PROGRAMS["Algorithm 1"], changes)
        missed = ""
    except UndefinedError as error:
        missed = str(error)
    says = f"Algorithm 1, only records of rounds q with {kept} kept: {missed or 'every client can rebuild'}"
    return Evidence("execution", bool(missed) is not works, says)


@refutes("line-697", "line-697.2", cause="two-sentences")
def alike_to_the_server() -> Evidence:
    """Two histories of four clients: what those of the last round report, and the oldest record that is needed."""
    seen = []  # of each history, the reports of its last round and the oldest record that is needed
    for history in (((3, 4), (1, 2), (1, 2), (1, 2)), ((3, 4), (3, 4), (1, 2), (1, 2))):
        last = dict.fromkeys(range(1, 5), 0)
        for r, clients in enumerate(history):
            reports = {i: last[i] for i in clients}
            last.update(dict.fromkeys(clients, r))
        seen.append((reports, min(last.values())))
    (reports, first), (again, other) = seen
    says = f"the reports {reports} come where records are needed from round {first} on, and where from {other}"
    return Evidence("counter-example", reports == again and first != other, says)


mends("line-697", "line-697.2")(kept_by_clients)


@refutes("line-715.4", cause="reasons")
def either_client() -> Evidence:
    ours, fedzo = ROLES["client"].vectors, ROLES["fedzo"].vectors
    return Evidence("arithmetic", ours == fedzo, f"vectors that a client needs at once: DeComFL {ours}, FedZO {fedzo}")


@refutes("line-730", cause="loose-words")
def less_than_all() -> Evidence:
    """Pairs of seed and scalar that clients are sent in a run of Algorithms 1 and 2, by client and round."""
    K = play(PROGRAMS["Algorithm 1"])["K"]
    sent = {f"client {i} in round {r}: {n} of {r * K}" for (i, r), n in records_sent().items() if n < r * K}
    return Evidence("execution", bool(sent), f"pairs sent, of all so far: {'; '.join(sorted(sent))}")


@refutes("line-737.2", cause="loose-words")
def length_of_a_step() -> Evidence:
    """‖g z‖² for every vector z of signs: g²d, whatever the seed."""
    v, wrong = np.array([3, -1, 2]), []
    for z in map(np.array, product((-1, 1), repeat=3)):
        g = v @ z
        wrong += [z] * int((g * z) @ (g * z) != 3 * g**2)
    return Evidence("counter-example", not wrong, f"d = 3, z = ±1: ‖g z‖² is 3g² for every seed; not: {wrong}")


@refutes("line-741", cause="reasons")
def constant_shift() -> Evidence:
    """Algorithm 1 whose clients and server put one seed in the place of all."""
    world = play(PROGRAMS["Algorithm 1"], {"line-304": "C[r] = choose(r, m)\ns = {(r, k): seed(0, 1) for k in steps}"})
    moves = [world["x"][r] - world["start"] for r in range(1, world["R"] + 1)]
    apart = [a for a, b in product(moves, repeat=2) if a[0] * b[1] != a[1] * b[0]]
    return Evidence("execution", not apart, "with a constant for the shift all models of a run lie on one line")


@context("line-741.2")
def guessed_shift() -> Evidence:
    """Scalars of a linear f of two parameters along three directions: which shifts of the seeds do they fit?"""
    gradient, secret = np.array([3.0, -1.0]), 41

    def directions(shift: int) -> Any:
        return np.stack([np.random.default_rng(seed + shift).standard_normal(2) for seed in range(3)])

    scalars = directions(secret) @ gradient
    fits = [
        shift
        for shift in range(100)
        if np.linalg.matrix_rank(np.column_stack([directions(shift), scalars]), tol=1e-9) < 3
    ]
    return Evidence("counter-example", fits == [secret], f"d = 2, three scalars: of 100 shifts {fits} fit")


@refutes("line-846.2", cause="loose-words")
def values_of_a_step() -> Evidence:
    """Values of f and gradients in the lines of a local step of Algorithms 2 and 5."""
    ours, other = (
        "\n".join(line.code for line in PROGRAMS[name].client if line.label in labels)
        for name, labels in (("Algorithm 2", {"line-335"}), ("Algorithm 5", {"line-834"}))
    )
    counts = [text.count("f(i,") for text in (ours, other)] + [other.count("gradient(i,")]
    says = (
        f"values of f in a step: {counts[0]} in Algorithm 2, {counts[1]} in Algorithm 5, which has {counts[2]} gradient"
    )
    return Evidence("execution", counts == [2, 0, 1], says)


# Appendix C.

refutes("line-880", cause="sources", witness=True)(
    unlike, EXAMPLES["RTE"], 10_000, "examples to validate on: RTE of GLUE against SNLI, the collection of that work"
)


@supports("line-913")
def share_of_lora() -> Evidence:
    share = LORA_PARAMETERS / PARAMETERS["OPT-125M"]
    return Evidence("arithmetic", share < 0.01, f"LoRA of rank 8 on Q and V of OPT-125M trains {share:.2%} of it")


@supports("line-915")
def lora_no_better() -> Evidence:
    gains = lora_gains()
    listed = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
    return Evidence("table", max(gains.values()) < 1, f"LoRA less full parameters, P = 10, in points: {listed}", gains)


@context("line-916")
def below_the_most_frequent() -> Evidence:
    """Accuracies of LoRA with P = 10 against the share of the most frequent answer in the validation set."""
    shares = {name: 100 * MOST_FREQUENT[name] / n for name, n in EXAMPLES.items()}
    below = [f"{name} {LORA[name][3].accuracy} < {share:.2f}" for name, share in shares.items()
             if LORA[name][3].accuracy < share]  # fmt: skip
    return Evidence("table", len(below) == 3, f"below the share of the most frequent answer: {', '.join(below)}")


# Appendix D.


@refutes("line-1151", cause="identities")
def polarisation() -> Evidence:
    """The identity that is used gives ⟨a, b⟩; the parallelogram's has no ⟨a, b⟩ in it."""
    a, b = sp.symbols("a b", real=True)
    parallelogram = sp.expand((a + b) ** 2 + (a - b) ** 2)
    by_polarisation = equal(a * b, a**2 / 2 + b**2 / 2 - (a - b) ** 2 / 2, "⟨a, b⟩ by polarisation")
    says = f"{by_polarisation.says}; ‖a + b‖² + ‖a − b‖² = 2‖a‖² + 2‖b‖² has no product"
    return Evidence("algebra", by_polarisation.holds and parallelogram == 2 * a**2 + 2 * b**2, says)
