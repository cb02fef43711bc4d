"""A situation: what a user brings to a door of the lab, what is right, and the judge.

An entry of a table has a name, for each door what is right, and then a module, a loss, data and the function f that is
meant: ``at("tied weights", kappa=RIGHT, train=RIGHT)(zoo.tied, loss, data, f)``. Right is ``RIGHT`` (the number is that
of f), ``refused(word)`` (an InputError of one line with the word, a regular expression), or ``either(word)`` (one of
the two). Further options of a door stand with its verdict: ``RIGHT.given(lr=0.1)``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decomfl_lab as lab
import hessian
from decomfl_lab.errors import DivergedError
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.optim import MeZO
from tests.nets import seeded
from tests.situations import truth
from tests.situations.truth import Curvature, Function
from tests.situations.zoo import DATA, ce, mlp, wide

FINE = 1e-3
"""Relative error at most, of users' models in float32."""


# --- entries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Whether a right answer is right, the word of a refusal if that is, and the options that a door is given."""

    right: bool
    word: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, **options: Any) -> Verdict:
        return replace(self, options=options)


RIGHT = Verdict(True)


def refused(word: str) -> Verdict:
    return Verdict(False, word)


def either(word: str) -> Verdict:
    return Verdict(True, word)


@dataclass(frozen=True)
class Of:
    """A loss that is made of the user's module, as one that has it in its closure."""

    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Entry:
    """What a user brings, and f.

    Attributes:
        verdicts: What is right, by door.
        module: It makes the module, with torch's generator at a seed.
        loss: The loss, or ``Of`` the module.
        data: What κ is asked of.
        f: The loss as it is meant, written out; None for the mean of the loss over the examples of the data.
        clients: What is trained on; None for one client with the data.
        values: Whether the truth of κ comes from f's values, as torch's derivatives are not those of the values.
        exact: Whether κ is asked for with as many products as make it exact; else by its interval.
        inside: The block in which a door is called.
        seed: That of noise in a user's forward.
    """

    name: str
    verdicts: dict[str, Verdict]
    module: Callable[[], Any] = mlp
    loss: Any = ce
    data: Any = field(default_factory=lambda: DATA)
    f: Function | None = None
    clients: Any = None
    values: bool = False
    exact: bool = True
    inside: Callable[[], AbstractContextManager[Any]] = nullcontext
    seed: int = 0


class Table:
    """Entries of one kind, in their order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def __call__(self, name: str, *, both: Verdict | None = None, **doors: Verdict | None) -> Callable[..., None]:
        """Add what the second call is given (an ``Entry``'s fields), under a name and what is right at each door.

        ``both`` is the verdict of κ and of training; one that is None leaves the door out.
        """
        given = {"kappa": both, "train": both} | doors
        verdicts = {door: verdict for door, verdict in given.items() if verdict is not None}
        assert verdicts.keys() <= DOORS.keys(), name
        assert verdicts, name
        return lambda *brought, **options: self.entries.append(Entry(name, verdicts, *brought, **options))


@dataclass(frozen=True)
class Situation:
    """An entry at a door."""

    entry: Entry
    door: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.door}: {self.entry.name}"

    def judge(self) -> None:
        entry = self.entry
        module = seeded(entry.module)
        loss = entry.loss.make(module) if isinstance(entry.loss, Of) else entry.loss
        made = replace(entry, loss=loss, f=entry.f or mean(loss, entry.data))
        before, start = _state(module), truth.copied(module) if isinstance(module, nn.Module) else None
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            torch.manual_seed(entry.seed)
            try:
                DOORS[self.door](made, module, start, self.verdict)
            except lab.InputError as error:
                _judge_refusal(error, self.verdict)
        after = _state(module)
        same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        assert same, "the user's module was changed"


def situations(*tables: Table) -> Iterator[Situation]:
    for table in tables:
        for entry in table.entries:
            for door, verdict in entry.verdicts.items():
                yield Situation(entry, door, verdict)


def mean(loss: Any, data: Any) -> Function:
    """f of pairs of inputs and targets: a batch counts by the number of its examples."""

    def f(net: nn.Module) -> Tensor:
        pairs = data if isinstance(data, list) else [data]
        total: Tensor = sum(len(y) * loss(net(wide(x)), wide(y)) for x, y in pairs)
        return total / sum(len(y) for _, y in pairs)

    return f


# --- the doors --------------------------------------------------------------------------------------------------------


def _judge_kappa(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    options = verdict.options
    if entry.exact:
        options = {"products": _size(module) + 5} | options
    with entry.inside():
        k = hessian.effective_rank(module, entry.loss, entry.data, **options)
    assert verdict.right, f"it should be refused, and κ is said to be {k.kappa}"
    H = truth.by_values(entry.f, start) if entry.values else truth.dense(entry.f, start)
    wanted = truth.curvature(H)
    if not entry.exact:
        low, high = k.interval
        assert low - FINE * abs(low) <= wanted.kappa <= high + FINE * abs(high), f"{k}, the truth {wanted.kappa}"
        assert k.norm == pytest.approx(wanted.norm, rel=0.05)
        return
    assert_same(k, wanted)


def assert_same(k: hessian.EffectiveRank, wanted: Curvature) -> None:
    """κ, tr(H) and ‖H‖₂ are those of the dense matrix."""
    told = f"tr, ‖H‖₂, κ are {k.trace.value, k.norm, k.kappa}, the truth {wanted.trace, wanted.norm, wanted.kappa}"
    assert k.trace.value == pytest.approx(wanted.trace, abs=FINE * wanted.absolute), told
    assert k.norm == pytest.approx(wanted.norm, rel=FINE), told
    assert k.kappa == pytest.approx(wanted.kappa, abs=2 * FINE * wanted.absolute / wanted.norm), told


def _judge_train(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    options = {"rounds": 1, "lr": 0.3, "batch_size": 10_000, "eval_every": 1, "seed": 3} | verdict.options
    if "method" not in options:  # of differences
        options = {"mu": 1e-5} | options
    data, clients = entry.data, entry.clients
    if clients is None:  # one client, of all data
        clients = data if isinstance(data, list) and len(data) == 1 else [data]
    with entry.inside():
        run = lab.train(module, entry.loss, clients, **options)
    assert verdict.right, f"it should be refused, and the loss is said to be {run.metrics.train_loss.iloc[-1]}"
    after = run.model
    pairs = zip(truth.trainable(start), truth.trainable(after), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs), "nothing was trained"
    with entry.inside():
        run.more(1)
    # The loss of a round is that at the model before it: at x_0, and at x_1, which is far enough to tell.
    for r, at in enumerate((start, after)):
        seen, wanted = run.metrics.train_loss.iloc[r], truth.value(entry.f, at)
        assert seen == pytest.approx(wanted, rel=FINE), f"the loss of round {r} is {seen}, the truth {wanted}"


def _judge_optim(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    optimizer = MeZO([*module.named_parameters(), *module.named_buffers()], 0.1, mu=1e-5, **verdict.options)
    loss, (batch,) = BatchLoss.of(entry.loss), entry.data
    with entry.inside():
        seen = optimizer.measure(lambda: loss(module, *batch))
    assert verdict.right, f"it should be refused, and the loss is said to be {seen}"
    assert entry.f is not None
    assert seen == pytest.approx(truth.value(entry.f, start), rel=FINE)


def _judge_measure(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    """f is what is right of the model at x_0 in ``column``, a number, NaN where it is empty."""
    options = {"rounds": 1, "lr": 1e-9, "batch_size": 10_000, "seed": 3, "test": entry.data[0]} | verdict.options
    column = options.pop("column", "test_accuracy")
    run = lab.train(module, entry.loss, entry.data, **options)
    seen = run.metrics[column].iloc[-1]
    assert verdict.right, f"it should be refused, and {column} is said to be {seen}"
    assert entry.f is not None
    assert seen == pytest.approx(float(entry.f(start)), rel=1e-6, nan_ok=True)


DOORS: dict[str, Callable[[Entry, Any, Any, Verdict], None]] = {
    "kappa": _judge_kappa,
    "train": _judge_train,
    "optim": _judge_optim,
    "measure": _judge_measure,
}
"""What judges the answer of a door to an entry, its module, and a copy from before; InputErrors are refusals."""


def _judge_refusal(error: lab.InputError, verdict: Verdict) -> None:
    message = str(error)
    assert verdict.word is not None, f"it should not be refused: {message}"
    assert not isinstance(error, DivergedError), message
    assert "\n" not in message
    # That a model and loss must take the examples is said of anything: its words are no reason.
    own = re.sub(r"model and loss must take the examples of", "", message)
    assert re.search(verdict.word, own, re.IGNORECASE), f"{verdict.word!r} is not in: {message}"


def _size(module: Any) -> int:
    if not isinstance(module, nn.Module):
        return 20
    lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters())
    return 20 if lazy else max(20, sum(p.numel() for p in truth.trainable(module)))


def _state(module: Any) -> dict[str, Tensor]:
    """Parameters, which have to be leaves without a gradient, buffers and modes, where they can be compared."""
    if not isinstance(module, nn.Module):
        return {}
    assert all(isinstance(p, nn.Parameter) for p in module.parameters()), "the user's module was changed"
    assert all(p.grad is None for p in module.parameters()), "the user's module has gradients"
    modes = [(f"mode of {name}", torch.tensor(part.training)) for name, part in module.named_modules()]
    named = [*module.named_parameters(), *module.named_buffers(), *modes]
    lazy = nn.parameter.UninitializedTensorMixin
    plain = {n: t.detach() for n, t in named if not isinstance(t, lazy) and not t.is_meta}
    return {name: tensor.clone() for name, tensor in plain.items() if not tensor.isnan().any()}
