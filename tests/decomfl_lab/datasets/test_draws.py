"""Data that draw while they are read: a draw is the same each time, and ``redraw`` takes more; data without an end."""

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

import decomfl_lab as lab
import hessian
from decomfl_lab.datasets import batches
from decomfl_lab.datasets.batches import batches_of
from decomfl_lab.datasets.user_data import data_of, first_clients, own_dataset
from decomfl_lab.objectives.objective import EpochBatches
from tests.cases import sampled
from tests.decomfl_lab.datasets.test_batches import Rows, X, Y, same

ROWS = [*zip(X / 12, Y, strict=True)]
NOISES: dict[str, Callable[[Any], Any]] = {
    "torch": lambda _: torch.rand(()),
    "numpy": lambda _: np.random.rand(),
    "python": lambda _: random.random(),
    "its own of torch": lambda own: torch.rand((), generator=own.torch),
    "its own of numpy": lambda own: own.numpy.random(),
    "its own of numpy before": lambda own: own.old.rand(),
    "its own of python": lambda own: own.inside[0].random(),
}


class Noisy(Rows):
    """Rows with noise on top."""

    def __init__(self, noise: str, rows: Any = ROWS) -> None:
        super().__init__(rows)
        self.noise = NOISES[noise]
        self.torch, self.numpy = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.old, self.inside = np.random.RandomState(1), [random.Random(1)]

    def __getitem__(self, n: int) -> Any:
        return self.rows[n][0] + float(self.noise(self)), self.rows[n][1]


def states(data: Noisy) -> str:
    own = data.torch.get_state(), data.numpy.bit_generator.state, data.old.get_state(), data.inside[0].getstate()
    return str((torch.get_rng_state().sum(), np.random.get_state(), random.getstate(), own))


FORMS: dict[str, Callable[[Any], Any]] = {
    "a Dataset": lambda data: data,
    "a loader that shuffles": lambda data: DataLoader(data, 5, shuffle=True),
    "by its own generator": lambda data: DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "with workers that live on": lambda data: DataLoader(data, 5, num_workers=1, persistent_workers=True),
}


@pytest.mark.parametrize(("noise", "form"), sampled(itertools.product(NOISES, FORMS), 5))
def test_a_draw_is_the_same_each_time_and_leaves_all_generators(noise: str, form: str) -> None:
    data = Noisy(noise)
    brought, found = FORMS[form](data), []
    for draw in (0, 1, 0):
        torch.rand(7), np.random.rand(7), random.random()
        before = states(data)
        found += [batches_of("data", brought, draw=draw)[0]]
        assert states(data) == before
    assert same(found[0], found[2])
    assert not same(found[0], found[1])
    with pytest.warns(
        UserWarning, match=r"^examples of client 0 are drawn anew .*: one draw is taken \(redraw=N takes N\)$"
    ):
        assert own_dataset([brought]).digest == own_dataset([brought]).digest
    data.noise = lambda own: float(NOISES[noise](own)) / 0
    with pytest.raises(lab.InputError, match="ZeroDivisionError"):
        batches_of("data", brought)
    assert states(data) == before


@pytest.mark.parametrize(
    "choice",
    [
        {"sampler": WeightedRandomSampler(range(1, 1 + len(X)), len(X))},
        {"sampler": RandomSampler(range(len(X)), num_samples=3)},
        {"shuffle": True, "drop_last": True},
    ],
    ids=["by weights", "some", "all but the last"],
)
def test_a_loader_that_draws_which_examples_there_are_is_told(choice: Any) -> None:
    with pytest.warns(lab.LabWarning, match="examples of client 0 are drawn anew"):
        own_dataset([DataLoader(TensorDataset(X, Y), batch_size=len(X) - 1, **choice)])


def test_what_no_seed_gives_again_is_said_and_an_order_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NOISES, "anew", lambda _: np.random.default_rng().random())
    with pytest.warns(UserWarning, match="which no seed known here gives again"):
        own_dataset([Noisy("anew")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ordered = [make(TensorDataset(X, Y)) for make in FORMS.values()]
        own_dataset([*ordered, (X, Y), iter([(X, Y)])], (X, Y))
        own_dataset([Noisy("torch")], redraw=2)
    assert not same(batches_of("data", ordered[1])[0], batches_of("data", ordered[3])[0])


def test_kappa_is_of_the_mean_over_the_draws() -> None:
    net, data, loss = nn.Linear(2, 3), Noisy("torch"), nn.functional.cross_entropy
    draws = [batch for draw in range(3) for batch in batches_of("data", data, draw=draw)[0]]
    wanted = hessian.effective_rank(net, loss, draws, products=20).kappa
    assert hessian.effective_rank(net, loss, data, products=20, redraw=3).kappa == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(lab.InputError, match="redraw must be 1 for what can be read only once.*got 'list_iterator'"):
        hessian.effective_rank(net, loss, iter([(X, Y)]), redraw=2)


def test_epochs_have_the_draws_in_turn() -> None:
    one, three = (EpochBatches(4, 3, (5,), redraw=redraw) for redraw in (1, 3))
    assert all((three(step) == one(step) + 4 * (step // 2 % 3)).all() for step in range(14))


def test_a_run_trains_on_all_draws_and_goes_on_with_them(tmp_path: Any) -> None:
    net, clients = nn.Linear(2, 3), [Noisy("numpy"), Noisy("torch", ROWS[:7])]
    options: dict[str, Any] = {"lr": 0.1, "batch_size": 12, "local_steps": 1, "eval_every": 1}
    whole = lab.train(net, clients=clients, rounds=5, redraw=2, **options)
    lab.train(net, clients=clients, rounds=2, redraw=2, out=tmp_path, **options)
    run = lab.load(tmp_path, net, clients=clients)
    run.more(3)
    assert torch.equal(run.model.weight, whole.model.weight)
    # A client's batch is all of its examples: that of the second round is of the second draw.
    data, seen = run.dataset, whole.metrics.train_loss
    first = [(data.train_images[:12], Y), (data.train_images[12:19], Y[:7])]
    alone = lab.train(net, clients=first, rounds=2, **options).metrics.train_loss
    assert (seen[0], data.N) == (alone[0], 19)
    assert seen[1] != alone[1]
    one, dealt = first_clients(data, 1), data_of(clients[0], redraw=2)
    assert one is not None
    assert one.digest == own_dataset(clients[:1], redraw=2).digest
    assert (dealt.N, len(dealt.train_images), dealt.parts) == (12, 24, None)
    with pytest.raises(lab.InputError, match="redraw must be 1 but for data of your own"):
        lab.TrainConfig(redraw=2)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return ((torch.rand(2), torch.tensor(n % 3)) for n in itertools.count())


@pytest.mark.parametrize(("limit", "value"), [("MOST_BATCHES", 20), ("MOST_AGAIN", 20), ("room", lambda _: 1e5)])
def test_data_without_an_end_are_refused_and_others_may_be_long(limit: str, value: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(batches, limit, value)
    for data in ([(X, Y)] * 50, iter([(X, Y)] * 50), itertools.repeat((X, Y), 50), DataLoader([*ROWS] * 9, 1)):
        assert len(batches_of("data", data)[0]) in (50, 108)
    once = limit == "MOST_AGAIN"
    for data in [itertools.repeat((X, Y))] if once else [Endless(), DataLoader(Endless(), 4), iter(Endless())]:
        with pytest.raises(
            lab.InputError, match=r"^data must have an end: .*itertools\.islice\(batches, n\).* no end'$"
        ):
            batches_of("data", data)
