"""Every method against an independent definition; compressed messages; what each costs on the wire."""

import copy
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab import DeComFL, DivergedError, Majority, Sgd, TrainConfig, TrainingSetting, noise
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.engines.base import Serial
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.protocol.messages import Kind, Quantized, Sparse, quantize, top_k
from decomfl_lab.protocol.server import PullPolicy, sample_clients
from decomfl_lab.protocol.wire import encode, read
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding, draw_seeds
from decomfl_lab.replicas.replica import SyncReplica
from decomfl_lab.replicas.rules import Step
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses, rows_of

ROWS = rows_of(__file__)
vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60).map(lambda v: np.array(v, np.float32))


def _config(method: str, **changes: object) -> TrainConfig:
    return TrainConfig(**ROWS["run"]).but(method, **changes)


def _federation(method: str, **changes: object):  # type: ignore[no-untyped-def]
    start = Prepared.of(_config(method, **changes), load_dataset("digits"))
    return start.federation(), start.module, start.layout


# Compression -------------------------------------------------------------------------------------------------


@given(vectors, st.integers(2, 8), st.integers(0, 99))
def test_quantisation_errs_by_less_than_a_level_and_survives_the_wire(v: np.ndarray, bits: int, seed: int) -> None:
    q = quantize(7, v, bits, (seed,))
    level = np.abs(v).max() / (2 ** (bits - 1) - 1)
    assert (np.abs(q.dense().astype(np.float64) - v) <= level * (1 + 1e-5)).all()
    message = encode(q)
    back = read(Quantized, message)
    assert (back.round, back.bits, back.scale) == (7, q.bits, q.scale)
    assert (back.levels == q.levels).all()
    assert len(message) == Kind.QUANTIZED.bytes(v.size if bits > 4 else (v.size + 1) // 2)


def test_quantisation_is_unbiased() -> None:
    v = np.linspace(-1, 1, 101).astype(np.float32)
    for bits in (2, 4, 8):
        n = 4000
        mean = np.mean([quantize(7, v, bits, (1, n_)).dense() for n_ in range(n)], axis=0)
        level = 1 / (2 ** (bits - 1) - 1)
        assert np.abs(mean - v).max() < 5 * 0.5 * level / np.sqrt(n)
        deterministic = np.round(v / level) * level  # rounding to nearest would be biased
        assert np.abs(deterministic - v).max() > 0.4 * level


@given(vectors, st.floats(0.01, 1.0))
def test_top_k_keeps_the_k_largest_and_survives_the_wire(v: np.ndarray, fraction: float) -> None:
    sparse = top_k(2, v, fraction)
    k = int(np.ceil(fraction * v.size))
    assert sparse.values.size == k
    assert (sparse.values == v[sparse.indices]).all()
    assert sparse.indices.tolist() == sorted(np.argsort(-np.abs(v), kind="stable")[:k])  # of equal ones the first
    message = encode(sparse)
    assert len(message) == Kind.SPARSE.bytes(k)
    back = read(Sparse, message)
    assert back.round == 2
    assert back.dense().tobytes() == sparse.dense().tobytes()


def test_top_k_by_signed_value_loses_what_falls() -> None:
    v = np.array([-9.0, 0.5, 3.0, -1.0, 2.0], np.float32)
    assert top_k(2, v, 0.4).indices.tolist() == [0, 2]
    assert top_k(2, v, 0.4, "value").indices.tolist() == [2, 4]
    federation, _, _ = _federation("fedavg-topk", top_k=0.1, top_k_by="value", sampled=1)
    start = federation.x.clone()
    federation.advance()
    moved = federation.x - start
    assert int((moved > 0).sum()) == int((moved != 0).sum()) == int(np.ceil(0.1 * start.numel()))


def _setting(sampled: int = 1, seed: int = 0) -> TrainingSetting:
    return TrainingSetting(torch.zeros(3), [cast("Any", abs)] * 2, sampled, seed, Serial())


@refuses(
    (lambda: _setting(sampled=3), r"sampled clients m \(of M=2\) must be an integer in 1\.\.2, got 3"),
    (lambda: _setting(seed=-1), r"seed must be an integer in 0\.\.18446744073709551615, got -1"),
    (lambda: DeComFL(lean=True).federation(_setting()), "lean clients need a Perturbable objective, got .*abs"),
    (lambda: quantize(7, np.array([np.nan], np.float32), 8, (0,)), "vector must be finite"),
    (lambda: Sparse(0, 3, np.array([2, 1]), np.ones(2, np.float32)), r"indices must rise within 0\.\.2"),
    (lambda: Sparse(0, 3, np.array([3]), np.ones(1, np.float32)), r"indices must rise within 0\.\.2"),
    (lambda: DeComFL(aggregation=Majority()), r"aggregation must be one of float32 scalars for decomfl, got Majority"),
    (lambda: DeComFL(lr_schedule={0: 0.1}), "round in lr_schedule must be an integer of at least 1, got 0"),
    (lambda: DeComFL(lr_schedule={1.5: 0.1}), r"round in lr_schedule must be an integer of at least 1, got 1\.5"),
    (lambda: DeComFL(lr_schedule={1: -0.1}), r"lr_schedule at round 1 must be a finite number above 0, got -0\.1"),
    (lambda: DeComFL(lr_schedule=[0.1]), r"lr_schedule must be \{round: value, \.\.\.\}"),
)
def test_bad_settings_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    call()


@refuses(*ROWS["settings"])
def test_settings_that_a_method_cannot_have_are_refused(method: str, options: dict[str, Any]) -> None:
    _config(method, **options)


# First-order methods -----------------------------------------------------------------------------------------


OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def _train_by_hand(module: nn.Module, client: Any, steps: range, stepper: torch.optim.Optimizer) -> torch.Tensor:
    """The module, trained with torch alone on the client's batches of these steps, as a vector."""
    for k in steps:
        inputs, targets = client.objective.batch(k)
        stepper.zero_grad()
        cross_entropy(module(inputs), targets).backward()
        stepper.step()
    return Layout.of(module).flatten(module)


@pytest.mark.parametrize(
    ("optimizer", "rates"), [("sgd", {}), ("sgd", {"momentum": 0.5, "weight_decay": 1e-3}), ("adam", {})]
)
def test_fedavg_is_the_average_of_copies_trained_apart(optimizer: str, rates: dict[str, float]) -> None:
    federation, module, layout = _federation("fedavg", local_steps=3, optimizer=optimizer, **rates)
    layout.bind(module, federation.x.clone())
    copies = []
    for i in sample_clients(3, 0, 6, 3):
        own = copy.deepcopy(module)
        stepper = OPTIMIZERS[optimizer](own.parameters(), lr=0.01, **rates)
        copies.append(_train_by_hand(own, federation.clients[i], range(3), stepper))
    federation.advance()
    wanted = torch.stack(copies).double().mean(0)
    assert torch.allclose(federation.x.double(), wanted, rtol=0, atol=1e-7)
    assert not torch.allclose(copies[0], copies[1], atol=1e-4)  # they differ, so averaging matters


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("state", ["kept", "fresh"])
def test_a_client_keeps_its_optimizer_or_begins_anew(optimizer: str, state: str) -> None:
    options = {"optimizer": optimizer, "momentum": 0.9, "weight_decay": 0.0, "optimizer_state": state, "local_steps": 2}
    federation, module, _ = _federation("fedavg", clients=1, sampled=1, **options)
    own, stepper, rates = copy.deepcopy(module), None, {"momentum": 0.9} if optimizer == "sgd" else {}
    for r in range(3):
        if stepper is None or state == "fresh":
            stepper = OPTIMIZERS[optimizer](own.parameters(), lr=0.01, **rates)
        wanted = _train_by_hand(own, federation.clients[0], range(2 * r, 2 * r + 2), stepper)
        federation.advance()
    assert torch.allclose(federation.x, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["fedavg", "fedzo", "mezo"])
def test_every_round_has_its_own_rate_where_models_are_trained_too(method: str) -> None:
    # Rates that are as good as none hold in rounds 1 and 3, those that move x in rounds 0, 2 and 4.
    alone = {"clients": 1, "sampled": 1} if method == "mezo" else {}
    federation, _, _ = _federation(method, **alone, lr_schedule={1: 1e-12, 2: 0.01, 3: 1e-12, 4: 0.01})
    moved = []
    for _ in range(5):
        before = federation.x.clone()
        federation.advance()
        moved.append(float((federation.x - before).abs().max()) > 1e-6)
    assert moved == [True, False, True, False, True]


def test_fedcom_is_fedavg_up_to_a_level_of_quantisation() -> None:
    plain, _, _ = _federation("fedavg", local_steps=2)
    coarse, _, _ = _federation("fedcom", local_steps=2, quantize_bits=4)
    fine, _, _ = _federation("fedcom", local_steps=2, quantize_bits=8)
    start = plain.x.clone()
    for federation in (plain, coarse, fine):
        federation.advance()
    errors = [float((f.x - plain.x).abs().max()) for f in (coarse, fine)]
    reach = float((plain.x - start).abs().max())
    assert 0 < errors[1] < errors[0]
    assert errors[1] < 3 * reach / 127
    assert errors[0] < 3 * reach / 7


def test_top_k_of_everything_is_fedavg_and_of_a_tenth_moves_a_tenth() -> None:
    plain, _, _ = _federation("fedavg")
    whole, _, _ = _federation("fedavg-topk", top_k=1.0)
    tenth, _, _ = _federation("fedavg-topk", top_k=0.1, sampled=1)
    start = tenth.x.clone()
    for federation in (plain, whole, tenth):
        federation.advance()
    assert torch.allclose(plain.x, whole.x, rtol=0, atol=1e-7)
    moved = int((tenth.x != start).sum())
    assert moved == int(np.ceil(0.1 * start.numel()))


# Zeroth-order methods ----------------------------------------------------------------------------------------


def _zo_by_hand(objective, x: torch.Tensor, seeds: list[int], eta: float, P: int, mu: float) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """K steps of x ← x − (η/P) Σ_p g_p z_p with central differences, in double precision."""
    x = x.double().clone()
    step = float(np.float32(mu))
    for k, seed in enumerate(seeds):
        z = np.stack([noise.direction(seed, p, x.numel(), backend="numpy") for p in range(P)]).astype(np.float64)
        plus, minus = (
            [objective((x + sign * step * torch.from_numpy(z_p)).float(), k) for z_p in z] for sign in (1, -1)
        )
        g = (np.array(plus) - np.array(minus)) / (2 * step)
        x = x - eta / P * torch.from_numpy(g @ z)
    return x


@pytest.mark.parametrize("method", ["fedzo", "fedzo-projection", "mezo"])
def test_fedzo_is_the_average_of_walks_along_own_directions_and_mezo_is_one_walk(method: str) -> None:
    federation, _, _ = _federation(method, local_steps=3)
    start, alone = federation.x.clone(), method == "mezo"
    walks = []
    for i in [0] if alone else sample_clients(3, 0, 6, 3):
        seeds = [derive_seed(3, 7, i, step) for step in range(3)]
        walks.append(_zo_by_hand(federation.clients[i].objective, start, seeds, 0.01, 3, 1e-3))
    federation.advance()
    wanted = torch.stack(walks).mean(0)
    moved = float((wanted - start).abs().max())
    assert torch.allclose(federation.x.double(), wanted, rtol=0, atol=2e-3 * moved)
    assert alone or float((walks[0] - walks[1]).abs().max()) > 0.1 * moved
    assert (federation.ledger.bytes == 0) == alone


@pytest.mark.parametrize("changes", [{"perturbations": 1}, {"local_steps": 2, "estimator": "forward"}])
def test_feedsign_walks_by_votes_along_the_directions_of_the_runs_seed(changes: dict[str, object]) -> None:
    federation, _, layout = _federation("feedsign", **changes)
    server, ahead, mu = federation.server, changes.get("estimator", "central") == "central", float(np.float32(1e-3))
    K, P, x = server.K, server.P(0), federation.x.double()
    steps: Counter[int] = Counter()
    for r in range(4):
        z = [
            np.stack([noise.direction(seed, p, layout.d, backend="numpy") for p in range(P)]).astype(np.float64)
            for seed in draw_seeds(Seeding.PER_RUN, server.run_seed, r, K, P)
        ]
        pros = np.zeros((K, P))
        for i in sample_clients(3, r, 6, 3):
            own, f = x.clone(), federation.clients[i].objective
            for k in range(K):
                points = [[own + c * torch.from_numpy(z_p) for z_p in z[k]] for c in (mu, -mu * ahead)]
                above, below = ([f(point.float(), steps[i]) for point in side] for side in points)
                pro = np.array(above) >= np.array(below)
                own -= 0.01 / P * torch.from_numpy((2 * pro - 1) @ z[k])
                pros[k] += pro
                steps[i] += 1
        for k in range(K):
            x -= 0.01 / P * torch.from_numpy(np.where(pros[k] >= 1.5, 1, -1) @ z[k])
        federation.advance()
        assert torch.allclose(federation.x.double(), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["feedsign", "fedzo"])
def test_a_loss_that_is_no_number_ends_a_run(method: str) -> None:
    federation, _, _ = _federation(method)
    federation.clients[sample_clients(3, 0, 6, 3)[0]].objective = lambda x, step: float("nan")
    with pytest.raises(DivergedError, match="scalars of client"):
        federation.advance()
    assert federation.round == 0


def test_baffle_walks_like_decomfl_with_one_local_step_and_keeps_no_history() -> None:
    ours, _, _ = _federation("decomfl")
    theirs, _, _ = _federation("baffle")
    assert all(client.replica.forgotten for client in theirs.clients)
    for _ in range(5):
        ours.advance()
        theirs.advance()
        assert torch.equal(ours.x, theirs.x)
        assert len(theirs.server.history) <= 1
    assert theirs.ledger.bytes > 5 * ours.ledger.bytes  # the model travels


def test_projection_is_the_slope_that_differences_approach() -> None:
    federation, module, layout = _federation("decomfl-projection")
    assert isinstance(federation, DeComFLFederation)
    plan = federation.server.plan_round([0])[0]
    client = federation.clients[0]
    x = client.replica.x.clone()
    found = client.handle(plan).scalars[0]
    layout.bind(module, x)
    inputs, targets = client.objective.batch(0)
    loss = cross_entropy(module(inputs), targets)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]).double()
    z = [noise.direction(plan.seeds[0], p, x.numel(), backend="numpy").astype(np.float64) for p in range(plan.P)]
    wanted = np.array([float(gradient @ torch.from_numpy(z_p)) for z_p in z])
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    differences, _, _ = _federation("decomfl")
    near = differences.clients[0].handle(differences.server.plan_round([0])[0]).scalars[0]
    assert near == pytest.approx(found, rel=0.02, abs=2e-3)
    assert client.replica.digest() == differences.clients[0].replica.digest()  # measuring moved neither


# Variants of DeComFL -----------------------------------------------------------------------------------------


def test_steps_of_a_round_that_failed_are_taken_back() -> None:
    replica, fresh = (SyncReplica(torch.linspace(-1, 1, 50).double(), Sgd()) for _ in range(2))
    own = Step((1, 2), np.array([0.5, -2.0], np.float32), 0.1, Distribution.GAUSSIAN)
    replica.step_(own)
    replica.diverge([own])
    moved = float((replica.x - fresh.x).abs().max())
    assert replica.catch_up(()) == 0
    assert float((replica.x - fresh.x).abs().max()) < 2.0**-40 * moved


def _records(count: int, P: int) -> list[RoundRecord]:
    scalars = np.ones((1, P), dtype=np.float32)
    return [RoundRecord(r, 0.1, Distribution.GAUSSIAN, (r,), scalars) for r in range(count)]


def test_the_policy_compares_bytes_and_time() -> None:
    records, seconds = _records(10, 5), 50 * 1000 * 1e-9  # of 1 ns for each element of the 50 directions
    for vectors, wide in ((1, 4), (3, 8)):
        more = vectors * (Kind.VECTOR.bytes() + 1000 * wide) - len(encode(tuple(records)))  # bytes of the model
        for link, pulls in ((0.99, False), (1.01, True)):  # at 1 both take as long
            policy = PullPolicy(bandwidth=link * more / seconds, replay_ns=1.0)
            assert policy.pulls(records, d=1000, vectors=vectors, bytes_per_element=wide) is pulls
    assert not PullPolicy().pulls([], d=1000, vectors=1, bytes_per_element=4)  # nothing missed
