"""κ and its interval: coverage, decisions, resumption, degenerate matrices."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hessian
from benchmarks.ways.spectra import SPECTRA, Diagonal
from decomfl_lab.errors import InputError
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from hessian import DenseOperator, EffectiveRankProgress, effective_rank, lanczos
from hessian.kappa.interval import estimation as module
from hessian.parts import PARTS
from hessian.spectrum.forms import PRODUCTS
from hessian.spectrum.walks import Walk
from tests.cases import sampled
from tests.hessian.problems import data, mlp
from tests.hessian.spectra import Watched, rotated
from tests.situations import zoo

TAIL = torch.cat([torch.tensor([40.0, 25.0, 11.0, 6.0, -4.0]), torch.linspace(-0.2, 1.0, 195)]).double()


def test_a_fixed_budget_is_spent_and_an_asked_error_is_reached_or_refused() -> None:
    operator = rotated(TAIL)
    for products in (8, 15, 20, 33):
        found = effective_rank(operator, seed=0, products=products)
        assert found.products == found.steps + found.probes == products
        assert found.quadratic_forms == max(found.probes - PRODUCTS, 0)
        assert found.probes >= 3
    # Two thirds of it are steps but where they take nothing out of the variance.
    bulk = torch.linspace(-0.2, 1.0, 500)
    assert [effective_rank(rotated(values), seed=0, products=60).steps for values in (TAIL, bulk)] == [40, 27]
    loose, tight = (effective_rank(operator, seed=0, rtol=rtol, max_products=400) for rtol in (0.1, 0.01))
    assert loose.reached
    assert tight.reached
    assert loose.products < tight.products < 400
    assert f"within 1 % of κ after {tight.products} products" in tight.reason
    cut = effective_rank(operator, seed=0, rtol=0.001, max_products=30)
    assert not cut.reached
    assert cut.products == 30
    assert cut.interval[0] < cut.kappa < cut.interval[1]
    assert "not within 0.1 % of κ after 30 products: about" in cut.reason
    needed = int(cut.reason.split("about ")[1].split()[0])
    assert needed > 400


@pytest.mark.thorough
def test_the_products_that_a_half_width_takes_are_foretold_within_a_factor_of_2() -> None:
    """In nine of ten runs, by what is known after ten products."""
    ratios = []
    for operator in (make()[0] for make in SPECTRA.values()):
        for seed in range(5):
            seen: list[EffectiveRankProgress] = []
            found = effective_rank(operator, seed=seed, on_progress=seen.append)
            if found.products > 10 and (needed := seen[9].needed):
                ratios.append(found.products / needed)
    assert np.mean([0.5 <= ratio <= 2 for ratio in ratios]) >= 0.9


def test_a_result_short_of_its_half_width_tells_it_and_what_it_takes() -> None:
    operator, _ = SPECTRA["indefinite"]()
    short, whole = effective_rank(operator, products=12), effective_rank(operator, rtol=0.05)
    assert (short.reached, whole.reached) == (False, True)
    assert whole.needed == whole.products
    assert whole.products / 2 <= short.needed <= 2 * whole.products  # type: ignore[operator]
    percent = 50 * (short.interval[1] - short.interval[0]) / short.kappa
    wanted = f"± {percent:.2g} % of κ, where ± 5 % takes about {short.needed} products)"
    assert str(short).endswith(f"(12 products, the most allowed: {wanted}")
    assert str(replace(short, limit=200)).endswith(f"(12 products: {wanted}")
    assert str(whole).endswith(f"({whole.products} products)")


def test_probes_lie_in_the_complement_and_the_trace_is_theirs_and_that_of_the_space() -> None:
    operator, seen = Watched(rotated(TAIL)), []
    found = effective_rank(operator, seed=4, rtol=0.01, on_progress=seen.append)
    assert [each.stage for each in seen].index("probes") == found.steps + module.SCOUTS - 1
    assert found.quadratic_forms == found.probes - PRODUCTS > 0
    vectors = torch.stack([v for _, v in operator.asked][module.SCOUTS :])
    Q, U = vectors[: found.steps], vectors[found.steps :]
    assert float((Q @ U.T).abs().max()) < 1e-12
    torch.testing.assert_close((U**2).sum(1), torch.full((found.probes,), 200.0 - found.steps).double())
    inside = float((Q @ operator.matrix @ Q.T).trace())
    forms = ((U @ operator.matrix) * U).sum(dim=1)
    assert found.trace.value == pytest.approx(inside + float(forms.mean()), rel=1e-12)
    assert found.trace.stderr == pytest.approx(float(forms.std() / len(forms) ** 0.5), rel=0.3)


@pytest.mark.parametrize("estimate", [effective_rank, partial(lanczos, steps=3)])
def test_checkpoints_of_other_runs_are_refused(estimate: Any, tmp_path: Path) -> None:
    path = tmp_path / "kappa.safetensors"
    estimate(rotated(TAIL), seed=6, checkpoint=path)
    of_kappa = [(rotated(TAIL), {"part": "positive"}, "part"), (rotated(TAIL), {"trace": 1.0}, "trace")]
    for operator, settings, what in (
        (rotated(TAIL, seed=1), {}, "operator"),
        (rotated(TAIL), {"seed": 7}, "seed"),
        *(of_kappa if estimate is effective_rank else []),
    ):
        with pytest.raises(InputError, match=rf"checkpoint must be of this run \({what} differ\)"):
            estimate(operator, **{"seed": 6, "checkpoint": path, **settings})


def part_of(values: Any, part: str) -> float:
    """κ of a part."""
    kept = PARTS[part].of(np.asarray(values))
    return float(kept.sum() / np.abs(kept).max())


REFINED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # of both, of the first, of the second
    ({}, {"rtol": 0.2}, {"rtol": 0.05}),
    ({}, {"rtol": 0.05}, {"rtol": 0.045}),
    ({}, {"products": 12}, {"rtol": 0.05}),
    ({}, {"rtol": 0.2}, {"products": 40}),
    ({}, {"confidence": 0.8}, {"confidence": 0.99}),
    ({}, {"rtol": 0.01, "max_products": 9}, {"rtol": 0.05}),
    ({"part": "positive"}, {"rtol": 0.3}, {"rtol": 0.1}),
    ({"trace": float(TAIL.sum())}, {"rtol": 0.5}, {"rtol": 1e-4}),
    ({"trace_operator": rotated(TAIL)}, {"rtol": 0.2}, {"rtol": 0.05}),
]


@pytest.mark.parametrize(("both", "first", "second"), sampled(REFINED, 4))
def test_a_result_is_refined_from_its_checkpoint(
    both: dict[str, Any], first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    true, held = part_of(TAIL, both.get("part", "signed")), 0
    for seed in range(2):
        estimate = partial(effective_rank, seed=seed, **both)
        coarse = estimate(rotated(TAIL), checkpoint=tmp_path / f"{seed}", **first)
        watched = Watched(rotated(TAIL))
        fine, fresh = estimate(watched, checkpoint=tmp_path / f"{seed}", **second), estimate(rotated(TAIL), **second)
        assert fine.reached == fresh.reached
        assert fine.products - coarse.products < fresh.products
        if "trace_operator" not in both:
            assert watched.calls == fine.products - coarse.products
        again = estimate(Watched(rotated(TAIL)), checkpoint=tmp_path / f"{seed}", **second)
        assert (again.kappa, again.interval, again.products) == (fine.kappa, fine.interval, fine.products)
        held += fine.interval[0] <= true * (1 + 1e-9) and true * (1 - 1e-9) <= fine.interval[1]
    assert held == 2


def test_a_result_is_refined_from_its_json() -> None:
    coarse = effective_rank(rotated(TAIL), seed=3, rtol=0.2)
    fine = hessian.refine(json.loads(json.dumps(coarse.to_json())), rotated(TAIL), rtol=0.05)
    assert fine.kappa == hessian.refine(coarse, rotated(TAIL)).kappa == effective_rank(rotated(TAIL), seed=3).kappa
    with pytest.raises(InputError, match="model must be what the result is of, .*200"):
        hessian.refine(coarse, rotated([1.0]))
    with pytest.raises(InputError, match="found must be a result of effective_rank"):
        hessian.refine({"kappa": 1.0}, rotated(TAIL))
    with pytest.raises(InputError, match="rtol must be below 0.07.*, the half-width that the result has, got 0.3"):
        hessian.refine(coarse, rotated(TAIL), rtol=0.3)
    with pytest.raises(InputError, match="checkpoint must be the result's own file, got"):
        hessian.refine(coarse, rotated(TAIL), checkpoint=Path("nowhere"))


def test_no_interval_of_a_part_reaches_below_1_or_above_d() -> None:
    """After few products next to nothing is known, but that κ₊ is in [1, d]."""
    spectrum = torch.cat([torch.tensor([1.0, 0.9, -0.9]), torch.linspace(-0.02, 0.02, 397)])
    found = [effective_rank(rotated(spectrum), products=5, seed=seed, part="positive") for seed in range(4)]
    assert all(1 <= low < high <= 400 for low, high in (each.interval for each in found))


def test_where_the_half_width_is_out_of_reach_the_interval_is_as_narrow_as_the_products_make_it() -> None:
    """Not that of one walk that is as deep as all of them."""
    tail = torch.cat([torch.tensor([9.0, 5.0]), torch.logspace(0, -4, 598)])
    tail[1::3] *= -1
    wide = [
        effective_rank(rotated(tail), max_products=90, rtol=rtol, seed=0, part="positive") for rtol in (0.08, 0.002)
    ]
    assert not wide[1].reached
    assert wide[1].probes > 1
    low, high = wide[1].interval
    assert high - low <= 1.3 * (wide[0].interval[1] - wide[0].interval[0])


FORGED: dict[str, Any] = {  # what is wrong with its values alone, a property of all files sees
    "a shorter vector": lambda tensors, _: tensors.update({"vector.0": torch.zeros(3)}),
    "a vector that is gone": lambda tensors, _: tensors.pop("vector.0"),
    "a vector of another type": lambda tensors, _: tensors.update({"vector.0": tensors["vector.0"].half()}),
    "a vector of zeros": lambda tensors, _: tensors.update({"vector.0": 0 * tensors["vector.0"]}),
    "a matrix of another type": lambda tensors, _: tensors.update(projected=tensors["projected"].float()),
    "forms of no dimension": lambda _, values: values["sampled"].update(n=0, values=[1.0]),
    "a matrix that is none": lambda tensors, _: tensors.update(projected=torch.zeros(2)),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_that_somebody_forged_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "kappa.safetensors"
    effective_rank(rotated(TAIL), seed=6, checkpoint=path)
    tensors, values = read_checkpoint(path)
    tensors, values = dict(tensors), json.loads(json.dumps(values))
    FORGED[name](tensors, values)
    write_checkpoint(path, tensors, values)
    with pytest.raises(InputError, match=r"in the checkpoint|checkpoint .* must have"):
        effective_rank(rotated(TAIL), seed=6, checkpoint=path)


SIGNED = {
    "few outliers": TAIL.numpy(),
    "two halves": np.array([1.0] * 20 + [-1.0] * 20),
    "heavy tails": np.outer(np.arange(1.0, 201.0) ** -1.5, [1.0, -0.8]).ravel(),
    "semicircle": np.cos(np.pi * (np.arange(300) + 0.5) / 300) + 0.2,
}


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    sampled(product(SIGNED, ({"products": 30}, {"rtol": 0.2}), ("positive", "absolute")), 3),
)
def test_kappa_of_a_part_lies_in_its_interval(name: str, settings: dict[str, Any], part: str) -> None:
    operator, true = Diagonal(SIGNED[name]), part_of(SIGNED[name], part)
    found = [effective_rank(operator, seed=seed, part=part, **settings) for seed in range(10)]
    assert np.mean([each.interval[0] <= true <= each.interval[1] for each in found]) >= 0.8
    for other, (called, *_) in PARTS.items():  # the same walks tell all three
        known = [one for each in found for one in each.readings if one.name == called]
        assert np.mean([one.low <= part_of(SIGNED[name], other) <= one.high for one in known]) >= 0.8
    assert all(each.products == settings.get("products", each.products) for each in found)
    assert all(each.reached for each in found) or "products" in settings
    assert np.median([(each.interval[1] - each.interval[0]) / 2 for each in found]) <= 0.35 * true


def test_an_interval_that_takes_walks_for_the_truth_is_caught() -> None:
    def gauss(walk: Walk) -> tuple[float, ...]:
        return 2 * (float(walk.rule()[1] @ walk.rule()[0].clip(0)),)

    values = SIGNED["heavy tails"]
    with mock.patch.object(Walk, "bounds", gauss):
        found = [effective_rank(Diagonal(values), seed=seed, part="positive", products=14) for seed in range(15)]
    assert np.mean([each.interval[0] <= part_of(values, "positive") <= each.interval[1] for each in found]) < 0.8


@pytest.mark.parametrize(("settings", "stop"), sampled(product(({"products": 40}, {"rtol": 0.05}), (5, 12, 22)), 2))
def test_a_part_goes_on_from_its_checkpoint_to_the_same_bits(
    settings: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    estimate = partial(effective_rank, rotated(TAIL, dtype=torch.float32), seed=3, part="positive", **settings)

    def end(at: EffectiveRankProgress) -> None:
        if at.products >= stop:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        estimate(checkpoint=tmp_path / "k.safetensors", on_progress=end)
    whole, again = estimate(), estimate(checkpoint=tmp_path / "k.safetensors")
    assert replace(again, seconds=0.0).to_json() == replace(whole, seconds=0.0).to_json()


@pytest.mark.parametrize(
    "values", [[-3.0], [4.0, -5.0, 2.0], [-1.0, -2.0, -3.0, -4.0], [2.0, 1.0], [1.0] * 20 + [-1.0] * 20], ids=str
)
def test_small_matrices_are_exact_in_every_part(values: list[float]) -> None:
    kappa = part_of(values, "signed")
    found = effective_rank(rotated(values), seed=0)
    assert found.kappa == pytest.approx(kappa, rel=1e-12, abs=1e-12)
    assert found.interval[0] <= kappa <= found.interval[1]
    assert found.interval[1] - found.interval[0] < 1e-12 * max(abs(kappa), 1) * len(values)
    assert found.reached
    assert found.trace.samples == 0
    assert "κ is exact" in found.reason
    for line in (str(found), found.summary().split("\n")[0]):
        assert line.endswith("take κ of |H| (part='absolute', --part absolute)") == (kappa < 0)

    for part in PARTS:  # all are told, whichever was asked for
        asked = {each.name: each.value for each in effective_rank(rotated(values), part=part, seed=0).readings}
        for other in PARTS.values():
            if max(other.of(np.array(values))) > 0 or other.which == "magnitude":
                kept = other.of(np.array(values))
                assert asked[other.name] == pytest.approx(kept.sum() / np.abs(kept).max(), rel=1e-12, abs=1e-12)


def test_degenerate_matrices() -> None:
    zero = effective_rank(DenseOperator(torch.zeros(50, 50)), seed=0)
    assert math.isnan(zero.kappa)
    assert not zero.reached
    assert "κ is undefined" in zero.reason
    assert not zero.others
    one = effective_rank(rotated([7.0, *[0.0] * 49]), seed=0)
    assert one.kappa == pytest.approx(1.0)
    assert one.interval[0] <= 1.0 <= one.interval[1]
    multiple = effective_rank(rotated([2.0] * 50), seed=0)  # probes of a fixed length see it exactly
    assert multiple.kappa == pytest.approx(50.0, rel=1e-12)
    assert multiple.interval[0] <= 50.0 <= multiple.interval[1] < 50.0001
    assert (multiple.steps, multiple.probes) == (1, module.LEAST_PROBES)
    none = effective_rank(rotated(-TAIL.abs()), part="positive", seed=0)
    assert str(none).startswith("κ₊ is undefined: H has no positive eigenvalue along any direction tried")
    negative = effective_rank(rotated(-TAIL), seed=0)
    assert negative.norm == pytest.approx(40.0, rel=1e-3) == -negative.lambda_min
    assert negative.interval[0] <= -part_of(TAIL, "signed") <= negative.interval[1] < 0


def test_signs_are_told_apart() -> None:
    indefinite = torch.cat([torch.tensor([30.0, 20.0, -12.0]), torch.linspace(-1.0, 1.0, 197)]).double()
    plain = effective_rank(rotated(indefinite), seed=0, products=40)
    assert not plain.others
    assert "H is indefinite (λ_min/λ_max = -0.4)" in plain.reason
    assert "not measured" in plain.summary()
    shown = rotated(TAIL.abs())
    shown.semidefinite = True
    definite = effective_rank(shown, seed=0)
    assert [each.value for each in definite.others] == [pytest.approx(definite.kappa, rel=1e-12)] * 2
    assert "this matrix has no negative eigenvalue" in definite.reason
    assert effective_rank(rotated(TAIL.abs()), seed=0).others == ()  # nobody has shown it
    assert "no positive eigenvalue" in effective_rank(rotated(-TAIL.abs()), seed=0).reason
    small = torch.cat([torch.tensor([30.0]), torch.linspace(-0.05, 1.0, 199)]).double()
    unsure = effective_rank(rotated(small), seed=0, products=14)
    assert -unsure.lambda_min_residual <= unsure.lambda_min < 0  # nine of 200 are negative, and nothing shows it
    assert "whether eigenvalues are negative, which would lower tr(H), is not known" in unsure.reason
    assert "no negative" not in unsure.summary()
    singular = torch.cat([torch.linspace(1.0, 2.0, 40), torch.full((1,), -1e-9)])  # a zero as float32 finds it
    assert "no negative eigenvalue" in effective_rank(DenseOperator(torch.diag(singular)), seed=0, products=41).reason


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_known_traces_interval_is_all_its_quotients_by_norms_that_may_be_hidden(sign: float) -> None:
    values = sign * np.concatenate([np.linspace(0.0, 1.0, 60), [3.0, 2.9]])
    known = float(values.sum())
    found = effective_rank(rotated(list(values)), trace=known, products=7, seed=0)
    norm, end = found.norm_interval
    small, large = sorted(map(abs, found.interval))
    assert large == pytest.approx(abs(known) / norm, rel=1e-9)
    assert small == pytest.approx(abs(known) / end, rel=1e-9)
    assert 1.001 * norm < end
    assert sign * found.interval[0] > 0
    assert (found.reached, found.probes, found.trace.stderr, found.trace.samples) == (False, 0, 0.0, 0)
    enough = effective_rank(rotated(list(values)), trace=known, rtol=1e-4, seed=0)
    assert enough.reached
    assert "tr(H) was known" in enough.reason
    assert enough.products == enough.steps < 40
    low, high = sorted(map(abs, enough.interval))
    assert low * (1 - 1e-12) <= abs(known) / 3.0 <= high * (1 + 1e-12) <= low * (1 + 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_exact_trace_leaves_room_for_rounding(dtype: torch.dtype) -> None:
    for seed in range(20):
        operator = rotated([5.0, -1.0, 2.0, 0.3, 0.1], seed=seed, dtype=dtype)
        found, truth = effective_rank(operator, seed=seed), float(operator.matrix.double().trace())
        assert found.trace_interval[0] <= truth <= found.trace_interval[1]
        assert found.trace_interval[1] - found.trace_interval[0] < 1e-4


@pytest.mark.parametrize(
    "settings",
    sampled([{"rtol": 0.02}, {"rtol": 1e-4, "max_products": 8}, {"rtol": 0.001, "max_products": 14}], 2),
    ids=str,
)
def test_the_unit_of_the_loss_changes_nothing_but_the_unit(settings: dict[str, Any]) -> None:
    values = np.concatenate([np.linspace(0.0, 1.0, 60), [3.0, 2.0, -1.0]])
    plain, small = (effective_rank(rotated(list(values * unit)), seed=0, **settings) for unit in (1.0, 2.0**-20))
    assert (small.kappa, small.interval, small.products) == (plain.kappa, plain.interval, plain.products)
    assert (small.reached, small.needed, small.reason) == (plain.reached, plain.needed, plain.reason)
    assert small.norm == plain.norm * 2.0**-20
    assert ("‖H‖₂ may be" in plain.reason) is (settings.get("max_products") == 8)


# --- the arguments of a module ----------------------------------------------------------------------------------------


def test_what_was_taken_on_trust_or_is_no_mean_is_said_in_the_reason() -> None:
    net, words = mlp(nn.GELU), "; module, loss and data were taken on trust"
    trusted = effective_rank(net, cross_entropy, data(), products=8, trust=True).reason
    assert trusted.endswith(words)
    assert effective_rank(net, cross_entropy, data(), products=8).reason == trusted.removesuffix(words)
    no_mean = effective_rank(net, zoo.weighted, data(n=300), products=8).reason
    assert "the loss is no mean over examples, so no batch is cut" in no_mean


# The trace alone ------------------------------------------------------------------------------------------------------


VALUES = np.concatenate([[30.0, -11.0], np.linspace(0.0, 1.0, 198)])


def test_its_interval_holds_and_is_as_narrow_as_asked_for() -> None:
    operator, true = rotated(list(VALUES)), float(VALUES.sum())
    found = [hessian.trace(operator, rtol=0.02, seed=seed) for seed in range(20)]
    assert all(each.reached for each in found)
    assert all(each.interval[1] - each.interval[0] <= 0.04001 * abs(each.value) for each in found)
    assert sum(each.interval[0] <= true <= each.interval[1] for each in found) >= 16
    short = hessian.trace(operator, products=8)
    assert str(short).endswith("(8 products, not within ± 5 % of it)") == (not short.reached)


# The gradient's overlap -----------------------------------------------------------------------------------------------


def test_shares_of_the_gradient_are_those_along_the_true_eigenvectors() -> None:
    module, batch = mlp(nn.Tanh), data()
    f = hessian.MeanLoss(module, cross_entropy, batch)
    g, scale = f.gradient(f.x), torch.linspace(0.5, 2.0, f.d).double()
    for operator, slope in (
        (hessian.HessianOperator(f), g),
        (2.0 * hessian.GaussNewtonOperator(f) + 0.5, g),
        (hessian.curvature(module, cross_entropy, batch, whiten=scale), scale * g),
    ):
        _, vectors = torch.linalg.eigh(operator @ torch.eye(f.d).double())
        found = effective_rank(operator, products=f.d, seed=0, overlap=True)
        true = ((vectors.T @ slope) / slope.norm()).square()
        torch.testing.assert_close(torch.tensor(found.gradient_shares).double()[-3:], true[-3:], rtol=1e-6, atol=1e-9)
        assert sum(found.gradient_shares) == pytest.approx(1)
        assert found.readings[-1].name == "∇f"
    with pytest.raises(InputError, match="overlap must be False with a matrix that is no model's, got dense"):
        effective_rank(rotated([1.0, 2.0, 3.0]), seed=0, overlap=True)
