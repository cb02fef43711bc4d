"""Every entry of Theorem 1's part is confirmed, and every one notices a planted fault in what it speaks of."""

import re
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from sympy import Rational, sympify

from decomfl_lab.storage.tables import table_beside
from tests.cases import rows_of, sampled
from tests.theory.findings.entries import confirmed
from theory import STATEMENTS, Setting
from theory.findings.decorators import placed
from theory.findings.evidence import proof_one, theorem_one
from theory.findings.evidence.one_round import OneRound
from theory.notation.symbols import K, P


def planted(key: Any, part: str, factors: dict[str, Any]) -> Any:
    """Inside, formulas of a statement in ``theory.bounds`` are factors times themselves."""
    old = STATEMENTS[key]
    formulas = getattr(old, part)
    changed: Any = {part: {**formulas, **{term: factor * formulas[term] for term, factor in factors.items()}}}
    return mock.patch("theory.bounds.STATEMENTS", {**STATEMENTS, key: replace(old, **changed)})


ROWS = rows_of(__file__)
GIVEN = table_beside(theorem_one.__name__, "given.toml")["theorem_one"]["witness"]
INSTANCES = {str(row["given"][2]): row["given"][2] for row in GIVEN if row["given"][0] != "corollary-1"}


@pytest.mark.parametrize("constants", INSTANCES.values(), ids=str)
@pytest.mark.parametrize("variant", ["stated", "corrected"])
@pytest.mark.parametrize("name", ["theorem-1", "local-drift", "corollary-1"])
def test_an_instance_can_be_typed_in_as_it_is_printed(name: str, variant: str, constants: dict[str, Any]) -> None:
    """At the largest η to four digits, which may be above the largest, many are refused."""
    many, bound = {**constants, "R": 10**6}, STATEMENTS[name, variant]  # type: ignore[index]
    told = theorem_one.witness(name, variant, many, 1.0).says  # type: ignore[arg-type]
    printed = re.search(r"η = ([^,:]+)", told)
    assert printed is not None, told
    assert bound.admits(Setting(d=1, L=1.0, D=0.5, eta=float(printed[1]), **many)), told


@pytest.mark.parametrize(("name", "variant", "factor", "labels"), sampled(map(tuple, ROWS["constants"]), 3))
def test_planted_constants_of_statements_are_noticed(name: str, variant: str, factor: str, labels: str) -> None:
    terms = STATEMENTS[name, variant].terms  # type: ignore[index]
    with planted((name, variant), "terms", dict.fromkeys(terms, sympify(factor, {"K": K, "P": P}))):
        unmoved = [label for label in labels.split() if confirmed(label)]
    assert not unmoved


@pytest.mark.parametrize(
    ("key", "term"), sampled([(key, term) for key in proof_one.PRINTED for term in proof_one.PRINTED[key]], 8)
)
def test_planted_constants_of_displays_are_noticed(key: str, term: str) -> None:
    """A printed term times 3/2 no longer follows, in its display or in the next."""
    with mock.patch.dict(proof_one.PRINTED[key], {term: Rational(3, 2) * proof_one.PRINTED[key][term]}):
        if found := ROWS["elsewhere"].get(f"{key} {term}"):
            assert not confirmed(found)
        else:
            assert {name for name in proof_one.DERIVED if not proof_one.follows(name).holds} - {"line-1112"}


@pytest.mark.parametrize(("name", "part", "term", "factor"), ROWS["tight"])
def test_the_corrected_proof_has_no_room_for_smaller_constants(name: str, part: str, term: str, factor: str) -> None:
    with planted((name, "corrected"), part, {term: Rational(factor)}):
        assert not theorem_one.chain().holds


def test_what_is_held_up_is_where_a_run_stays() -> None:
    """20,000 rounds of the two clients f ± |x − 49|, seed 0: the mean of f'² is that of the certificate."""
    w = np.random.default_rng(0).chisquare(2000, (20_000, 2)) / 2000
    x, total = 50.0, 0.0
    for round_ in w:
        total += min(0.01 * x, 0.487) ** 2
        ends = np.array([x, x])
        for mean in round_:
            ends = ends - 0.1 * mean * (np.minimum(0.01 * ends, 0.487) + [1, -1] * np.sign(ends - 49))
        x = float(ends.mean())
    assert total / len(w) == pytest.approx(theorem_one.held_up().numbers["left"], rel=1e-9)


DISPLAYS = sorted({each.check.name.split("'")[1] for each in placed() if "theorem_one.fixed_step" in each.check.name})


@pytest.mark.parametrize("name", sampled(DISPLAYS, 3))
def test_searches_over_rounds_are_sharp_enough_to_fail(name: str) -> None:
    """Each search comes within a factor 200 of its display's bound, so a bound 200 times smaller is seen to fail."""
    worst = theorem_one.searched(name)
    assert 1 / 200 < worst.ratio <= 1 + 1e-9


def test_a_round_s_expectations_are_exact() -> None:
    """Against 200,000 draws of z_1, z_2, seed 0; and without local steps' noise at μ → 0 in closed form."""
    r = OneRound(mu=0.5, eta=0.4, x=0.3)
    z = np.random.default_rng(0).standard_normal((2, 200_000))
    x = np.full((3, z.shape[1]), r.x)
    drift = np.zeros(z.shape[1])
    for k in range(2):
        drift += ((x - r.x) ** 2).mean(axis=0)
        x = x - r.eta * (r.value(x + r.mu * z[k]) - r.value(x)) / r.mu * z[k]
    assert abs(drift.mean() - r.drift) < 4 * drift.std() / np.sqrt(z.shape[1])
    still = OneRound(mu=1e-4, eta=0.4, x=0.3)
    assert still.drift == pytest.approx(0.4**2 * 3 * float((still.gradient(0.3) ** 2).mean()), rel=1e-3)
