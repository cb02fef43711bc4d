"""The arithmetic of the tables of results, settings, memory and notation: bytes, rounds, accuracies as k/n, indices."""
# "line-N" is the statement on line N of the paper's LaTeX source; @supports says that what is found speaks for it.

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import product
from typing import Final

from decomfl_lab.methods.memory import ROLES
from decomfl_lab.models.registry import build_model, num_parameters
from theory.communication import expected_numbers
from theory.findings.corrections import MENDED
from theory.findings.decorators import context, mends, refutes, supports
from theory.findings.evidence.algorithms import PROGRAMS, play
from theory.findings.finding import Evidence
from theory.notation.printed import (
    EXAMPLES,
    LORA,
    LORA_PARAMETERS,
    PARAMETERS,
    RESULTS,
    ROUNDS,
    SHARE,
    WORD,
    Cell,
    agree,
    decomfl_megabytes,
    model_terabytes,
)

LORA_TABLE: Final = {"LoRA": LORA}
# Cells 0 to 3 of a row of RESULTS are FedAvg's, MeZO's, FedZO's and DeComFL's.


def least_runs(accuracy: float, n: int, most: int = 100) -> int | None:
    """The least number of runs whose mean accuracy on n examples can be printed so: accuracy/100 = k/(runs·n) rounded.

    The accuracy is in per cent, with two decimals. None where ``most`` runs do not suffice.
    """
    for runs in range(1, most + 1):
        if agree(accuracy, 100 * round(accuracy / 100 * n * runs) / (n * runs)):
            return runs
    return None


def _costs(
    formula: str,
    printed: Mapping[str, float],
    computed: Mapping[str, float],
    odd: tuple[str, ...] = (),
    unit: str = "MB",
) -> Evidence:
    """Evidence that all printed costs are the computed ones but those of ``odd``, which are not."""
    wrong = [name for name in printed if not agree(printed[name], computed[name])]
    says = f"{formula}: {len(printed) - len(wrong)} of {len(printed)} cells agree" + "".join(
        f"; {name}: printed {printed[name]:.2f} {unit}, formula {computed[name]:.2f}" for name in wrong
    )
    counts = {"cells": len(printed), "agree": len(printed) - len(wrong), "off": len(wrong)}
    return Evidence("table", wrong == list(odd), says, counts)


def _cells(value: Callable[[str, str], float]) -> dict[str, float]:
    """A value for each model and task of Table 2, by their names."""
    return {f"{model} {name}": value(model, name) for model in RESULTS for name in RESULTS[model]}


def _printed(column: int) -> dict[str, float]:
    """The costs of a column of Table 2."""
    return _cells(lambda model, name: RESULTS[model][name][column].cost or 0.0)


def decomfl(odd: tuple[str, ...]) -> Evidence:
    computed = _cells(lambda model, name: decomfl_megabytes(ROUNDS[model][name], P=10))
    return _costs("R·P·12 bytes, P = 10", _printed(3), computed, odd)


@refutes("line-582.4", cause="table-cells")
def fedzo() -> Evidence:
    computed = _cells(lambda model, name: model_terabytes(ROUNDS[model][name], PARAMETERS[model]))
    formula = "R·(m/M)·2·4d bytes, d = 125·10⁶ or 1.3·10⁹"
    return _costs(formula, _printed(2), computed, ("OPT-125M CB",), "TB")


def cell(name: str, column: int, printed: float, fixed: float) -> Evidence:
    """A printed cost is not what its column's formula says (2: FedZO, in TB; 3: DeComFL, in MB); a fixed one is."""
    model, data = name.split()
    rounds = ROUNDS[model][data]
    follows = model_terabytes(rounds, PARAMETERS[model]) if column == 2 else decomfl_megabytes(rounds, P=10)
    implied = rounds * printed / follows
    return Evidence(
        "table",
        RESULTS[model][data][column].cost == printed and not agree(printed, follows) and agree(fixed, follows),
        f"{name}: printed {printed}, formula {follows:.4g} for {rounds} rounds, that is {fixed}; the print would take "
        f"{implied:.0f} rounds; of DeComFL R·P·12 bytes, P = 10",
        {"printed": printed, "formula": follows, "rounds": rounds, "factor": printed / follows, "implied": implied},
    )


@refutes("line-582.5", cause="participation", witness=True)
def counting() -> Evidence:
    M, m, P, R = 8, 2, 10, 100_000
    words = sum(astuple(expected_numbers(R, M=M, m=m, K=1, P=P))) / (R * P)
    mended = MENDED["line-582.5"].value({"R": 1, "P": 1, "M": M, "m": m})
    return Evidence(
        "arithmetic",
        words < 3 and math.isclose(words, mended, rel_tol=1e-3),
        f"printed R·P·3 words; a client of {SHARE:.0%} participation moves R·P·{words:.3g}, {3 / words:.3g} times less",
        {"printed": 3.0, "own": words, "ratio": 3 / words},
    )


def _rounds_of_fedavg() -> dict[str, float]:
    """Rounds that the costs of FedAvg in Table 2 imply."""
    printed = _printed(0)
    return _cells(lambda model, name: printed[f"{model} {name}"] / model_terabytes(1, PARAMETERS[model]))


@refutes("line-574", cause="rounds-apart", witness=True)
def rounds_apart() -> Evidence:
    """Rounds of DeComFL over those of FedAvg, by task of Table 2."""
    implied = _rounds_of_fedavg()
    ratios = _cells(lambda model, name: ROUNDS[model][name] / implied[f"{model} {name}"])
    low, high = min(ratios.values()), max(ratios.values())
    worst = max(ratios, key=lambda name: ratios[name])
    says = f"rounds of DeComFL over those that FedAvg's costs imply: {low:.2g} to {high:.2g} ({worst})"
    return Evidence("table", high > 2, says, {**ratios, "least": low, "most": high})


@context("line-582.6")
def implied_rounds() -> Evidence:
    implied = _rounds_of_fedavg()
    listed = ", ".join(f"{name} {rounds:.0f}" for name, rounds in implied.items())
    return Evidence("table", all(rounds > 0 for rounds in implied.values()), f"rounds implied: {listed}", implied)


def accuracies(tables: Mapping[str, Mapping[str, tuple[Cell, ...]]]) -> Evidence:
    least = []
    for model, rows in tables.items():
        for name, cells in rows.items():
            for cell in cells:
                runs = least_runs(cell.accuracy, EXAMPLES[name]) or math.inf
                least.append((runs, f"{model} {name} {cell.accuracy:.2f}"))
    single = [name for runs, name in least if runs == 1]
    sizes = ", ".join(f"{EXAMPLES[name]}" for name in next(iter(tables.values())))
    most_runs, most = max(least)
    return Evidence(
        "table",
        len(single) < len(least),
        f"{len(single)} of {len(least)} accuracies are k/n, n = {sizes} ({', '.join(single)}); the others can only be "
        f"means over runs or batches, {most} over {most_runs} runs or more",
        {"single": len(single), "cells": len(least), "most runs": most_runs},
    )


context("line-582.7")(accuracies, RESULTS)
context("line-920.3")(accuracies, LORA_TABLE)


@context("line-575")
def as_good_as_mezo() -> Evidence:
    gains = [cells[3].accuracy - cells[1].accuracy for rows in RESULTS.values() for cells in rows.values()]
    return Evidence("table", min(gains) >= 0, f"DeComFL − MeZO: {min(gains):.2f} to {max(gains):.2f} points, 12 cells")


@refutes("line-575.2", cause="loose-words", witness=True)
def above_fedzo() -> Evidence:
    """A sign test: were both the same, each cell would be above or below by the toss of a coin."""
    gains = [cells[3].accuracy - cells[2].accuracy for rows in RESULTS.values() for cells in rows.values()]
    above = sum(gain > 0 for gain in gains)
    chance = 2 * sum(math.comb(len(gains), n) for n in range(above, len(gains) + 1)) / 2 ** len(gains)
    says = f"DeComFL − FedZO: {min(gains):.2f} to {max(gains):.2f} points, above in {above} of {len(gains)} cells"
    numbers = {"least": min(gains), "most": max(gains), "above": above, "cells": len(gains), "chance": chance}
    return Evidence("table", chance < 0.05, f"{says}, sign test p = {chance:.2g}", numbers)


def lora_gains() -> dict[str, float]:
    """Points that LoRA is above full-parameter DeComFL, P = 10, by task."""
    return {name: cells[3].accuracy - RESULTS["OPT-125M"][name][3].accuracy for name, cells in LORA.items()}


@context("line-916")
def lora_comparable() -> Evidence:
    """LoRA against full-parameter DeComFL, P = 10; the standard error is that of a difference of two shares."""
    gains = lora_gains()
    worst = min(gains, key=lambda name: gains[name])
    share = LORA[worst][3].accuracy / 100
    errors = gains[worst] / (100 * math.sqrt(2 * share * (1 - share) / EXAMPLES[worst]))
    says = f"LoRA − full parameters: {max(gains.values()):.2f} to {gains[worst]:.2f} points, the latter on {worst}"
    return Evidence(
        "table",
        errors > -2,
        f"{says}: {-gains[worst]:.2f} below, {-errors:.1f} standard errors",
        {**gains, "below": -gains[worst], "errors": -errors},
    )


@supports("line-138")
def one_megabyte() -> Evidence:
    costs = [decomfl_megabytes(R, P=10) for model in RESULTS for R in ROUNDS[model].values()]
    return Evidence(
        "table",
        max(costs) <= 1,
        f"by the formula of Table 2 {min(costs):.2f} to {max(costs):.2f} MB, {1 / max(costs):.1f} to "
        f"{1 / min(costs):.1f} times less than 1 MB",
        {"least": min(costs), "most": max(costs)},
    )


@refutes("line-578", cause="table-cells")
def apart_as_printed() -> Evidence:
    """The costs of DeComFL for both sizes of model, as Table 2 has them, as multiples of each other."""
    small, large = (RESULTS[model] for model in ("OPT-125M", "OPT-1.3B"))
    ratios = {name: (large[name][3].cost or 0.0) / (cells[3].cost or 0.0) for name, cells in small.items()}
    listed = ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items())
    return Evidence("table", max(ratios.values()) > 2, f"OPT-1.3B over OPT-125M, as printed: {listed}", ratios)


@mends("line-578")
def nearly_identical() -> Evidence:
    """Costs of DeComFL a round and direction, with the two cells of line 582 mended."""
    mended = {name: 0.18 if cost == 1.8 else cost for name, cost in _printed(3).items()}
    bytes_a_round = _cells(lambda model, name: mended[f"{model} {name}"] * 1e6 / (10 * ROUNDS[model][name]))
    low, high = min(bytes_a_round.values()), max(bytes_a_round.values())
    return Evidence(
        "table",
        math.isclose(low, high),
        f"mended, {low:.3g} to {high:.3g} bytes a round and direction for both models; as printed 7.5 times between "
        "them for RTE and BoolQ",
        bytes_a_round,
    )


@supports("table.llm-125m-lora")
def lora_decomfl() -> Evidence:
    printed = {f"{name}, P = {P}": LORA[name][column].cost or 0.0 for name in LORA for column, P in ((2, 5), (3, 10))}
    computed = {
        f"{name}, P = {P}": decomfl_megabytes(ROUNDS["OPT-125M+LoRA"][name], P) for name in LORA for P in (5, 10)
    }
    return _costs("R·P·12 bytes, P = 5 and 10", printed, computed)


@refutes("line-920.2", cause="lora-costs", witness=True)
def lora_fedzo() -> Evidence:
    implied = {name: (cells[1].cost or 0) * 1e12 / (2 * SHARE * WORD) for name, cells in LORA.items()}
    d = [total / ROUNDS["OPT-125M+LoRA"][name] for name, total in implied.items()]
    listed = ", ".join(f"{cells[1].cost} TB" for cells in LORA.values())
    return Evidence(
        "table",
        min(d) > 100 * LORA_PARAMETERS and max(d) < 1.01 * min(d),
        f"with P = 5 {listed} imply {min(d) / 1e6:.0f}·10⁶ parameters a transfer, where Table 2 has "
        f"{PARAMETERS['OPT-125M'] / 1e6:.0f}·10⁶; LoRA of rank 8 on Q and V trains {LORA_PARAMETERS}",
        dict(zip(LORA, d, strict=True)),
    )


@mends("line-920.2")
def lora_mended() -> Evidence:
    costs = {name: 1e6 * model_terabytes(ROUNDS["OPT-125M+LoRA"][name], LORA_PARAMETERS) for name in LORA}
    listed = ", ".join(f"{name} {megabytes:.0f} MB" for name, megabytes in costs.items())
    costs_of_decomfl = [cells[2].cost or 0.0 for cells in LORA.values()]
    ratio = min(costs[name] / cost for name, cost in zip(LORA, costs_of_decomfl, strict=True))
    return Evidence("table", max(costs.values()) < 0.01 * 1e6, f"{listed}; {ratio:.0f} times DeComFL's", costs)


@supports("table.Experiment setting")
def settings() -> Evidence:
    """The rounds of line 888 against the costs of both tables of results, which were computed from them."""
    pairs = [
        (ROUNDS[model][name], (cells[3].cost or 0.0) / decomfl_megabytes(1, 10))
        for model, rows in {**RESULTS, "OPT-125M+LoRA": LORA}.items()
        for name, cells in rows.items()
    ]
    same = sum(math.isclose(rounds, implied) for rounds, implied in pairs)
    return Evidence("table", same == len(pairs) - 2, f"{same} of {len(pairs)} costs of DeComFL (P = 10) imply these R")


@supports("line-627")
def indices() -> Evidence:
    """The indices of the symbols in a run of Algorithms 1 and 2 against those of the notation."""
    world = play(PROGRAMS["Algorithm 1"])
    M, m, K, R = (world[name] for name in "MmKR")
    clients, rounds, steps = range(1, M + 1), range(R), range(1, K + 1)
    drawn = [(i, r) for r in rounds for i in world["C"][r]]
    measured = {(i, r, k) for (i, r), k in product(drawn, steps)}
    holds_of = {
        "x_r": {key for key in world["x"] if isinstance(key, int)} == set(range(R + 1)),
        "x_{i,r}^k": {key for key in world["x"] if not isinstance(key, int)}
        <= set(product(clients, range(R + 1), range(1, K + 2))),
        "g_{i,r}^k": {key for key in world["g"] if len(key) == 3} == measured,
        "C_r": all(len(set(world["C"][r])) == m and set(world["C"][r]) <= set(clients) for r in rounds),
    }
    odd = [name for name, holds in holds_of.items() if not holds]
    return Evidence(
        "execution", not odd, f"in a run of Algorithms 1 and 2 {', '.join(holds_of)} have these indices; not: {odd}"
    )


@mends("line-717")
def memory_measured() -> Evidence:
    lean, plain, fedzo = ROLES["client-lean-sync"], ROLES["client"], ROLES["fedzo"]
    return Evidence(
        "arithmetic",
        (fedzo.vectors, lean.vectors, lean.layers, plain.vectors) == (3, 1, 1, 3),
        f"vectors alive at the peak, as the report measures it: FedZO's client {fedzo.vectors}, DeComFL's "
        f"{lean.vectors} and a layer if parameter-wise and corrected afterwards, {plain.vectors} as in Algorithm 2",
        {"lean": lean.vectors, "plain": plain.vectors, "fedzo": fedzo.vectors},
    )


@refutes("line-846", cause="loose-words")
def work_of_a_step() -> Evidence:
    """A gradient is worth three passes, of which its backward pass is two; forward differences take P + 1."""
    ratios = {P: 3 / (P + 1) for P in (1, 10, 40)}
    listed = ", ".join(f"{ratio:.2g} for P = {P}" for P, ratio in ratios.items())
    return Evidence("arithmetic", ratios[1] > 1 > ratios[10], f"passes of projection over those of ZOO: {listed}")


@refutes("line-944", cause="loose-words")
def near_is_not_zero() -> Evidence:
    """κ where a histogram shows 0 for all eigenvalues but one."""
    d, near = 269_722, 0.01
    kappa = 1 + near * (d - 1)
    return Evidence(
        "counter-example",
        kappa > 100,
        f"d = {d}, one eigenvalue of 1, {near:.0%} of it all others: κ = {kappa:.0f}",
        {"d": d, "near": near, "kappa": kappa},
    )


@refutes("line-715", "line-717", cause="memory", witness=True)
def phi() -> Evidence:
    """The largest parameter tensor as a share of the model."""
    shares = {}
    for words, name in (("CNN of line 544", "cnn-mnist"), ("CNN of line 558", "cnn-fashion")):
        module = build_model(name, seed=0, in_shape=(1, 28, 28), classes=10)
        shares[words] = max(parameter.numel() for parameter in module.parameters()) / num_parameters(module)
    # Of an OPT model of so many layers the token embeddings, 50,272 × width, are; tied output, 2,050 positions.
    for words, width, depth in (("OPT-125M", 768, 12), ("OPT-1.3B", 2048, 24)):
        embedding = 50272 * width
        layer = 12 * width * width + 13 * width
        shares[words] = embedding / (embedding + 2050 * width + depth * layer + 2 * width)
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return Evidence("arithmetic", max(shares.values()) > 0.5, f"φ/d: {listed}", shares)
