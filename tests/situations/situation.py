"""A situation: what a user brings to a door of the lab, what is right, and the judge.

An entry of a table is a small function that builds a ``Case``, under a sentence that names the situation and, for each
door, what is right: ``RIGHT`` (the number is that of f), ``refused(word)`` (an InputError of one line with the word, a
regular expression), or ``either(word)`` (one of the two).
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import decomfl_lab as lab
import hessian
from decomfl_lab.errors import DivergedError
from tests.nets import seeded
from tests.situations import truth
from tests.situations.truth import Curvature, Function

FINE = 1e-3
"""Relative error at most, of users' models in float32."""
WEIGHTS = r"\bweights\b"
"""The remedy where the losses of batches have to be weighed."""
MODEL_FORM = r"\(model, batch\)"
"""The remedy where a loss reads the module behind the function."""

_generator = torch.Generator().manual_seed(7)
N = 40
X = torch.randn(N, 4, generator=_generator)
Y = torch.randint(0, 3, (N,), generator=_generator)
REAL = torch.randn(N, 3, generator=_generator)
X64, REAL64 = X.double(), REAL.double()
BATCHES = list(zip(X.split(11), Y.split(11), strict=True))
"""Of 11, 11, 11 and 7 examples."""


def mlp(middle: Callable[[], nn.Module] = nn.Tanh, *, bias: bool = True) -> nn.Sequential:
    """d = 27."""
    return seeded(lambda: nn.Sequential(nn.Linear(4, 3, bias=bias), middle(), nn.Linear(3, 3, bias=bias)))  # type: ignore[no-any-return]


def ce(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def mean_ce(net: nn.Module) -> Tensor:
    """f of most situations."""
    return ce(net(X64), Y)


# --- the verdicts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    right: bool
    word: str | None


RIGHT = Verdict(True, None)


def refused(word: str) -> Verdict:
    return Verdict(False, word)


def either(word: str) -> Verdict:
    return Verdict(True, word)


@dataclass
class Case:
    """What a user brings, and f.

    Attributes:
        module, loss, data: What κ is asked of.
        f: The loss as it is meant, written out; None where nothing can be right.
        clients: What is trained on; None for one client with the data.
        kappa, train: More arguments of the doors.
        values: Whether the truth of κ comes from f's values, as torch's derivatives are not those of the values.
        exact: Whether κ is asked for with as many products as make it exact; else by its interval.
    """

    module: Any
    loss: Any
    data: Any
    f: Function | None = None
    clients: Any = None
    kappa: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    values: bool = False
    exact: bool = True
    start: Any = None  # a copy of the module, from before the door


@dataclass(frozen=True)
class Situation:
    name: str
    make: Callable[[], Case]
    door: str
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.door}: {self.name}"

    def judge(self, seed: int = 0) -> None:
        case = self.make()
        before = _state(case.module)
        case.start = copy.deepcopy(case.module) if isinstance(case.module, nn.Module) else None
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)  # of noise in a user's forward
            try:
                (_judge_kappa if self.door == "kappa" else _judge_train)(case, self.verdict)
            except lab.InputError as error:
                _judge_refusal(error, self.verdict)
        after = _state(case.module)
        same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        assert same, "the user's module was changed"


class Table:
    """Situations of one kind, in their order."""

    def __init__(self) -> None:
        self._entries: list[Situation] = []

    def __iter__(self) -> Iterator[Situation]:
        return iter(self._entries)

    def add(
        self, name: str, *, kappa: Verdict | None = None, train: Verdict | None = None, both: Verdict | None = None
    ) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
        def entered(make: Callable[[], Case]) -> Callable[[], Case]:
            doors = {"kappa": kappa or both, "train": train or both}
            assert any(doors.values()), name
            self._entries += [Situation(name, make, door, v) for door, v in doors.items() if v is not None]
            return make

        return entered


def every(table: Table) -> Any:
    return pytest.mark.parametrize("situation", list(table), ids=str)


# --- the judge --------------------------------------------------------------------------------------------------------


def _judge_kappa(case: Case, verdict: Verdict) -> None:
    d = _size(case.module)
    options = case.kappa if not case.exact else {"products": d + 5} | case.kappa
    k = hessian.effective_rank(case.module, case.loss, case.data, **options)
    assert verdict.right, f"it should be refused, and κ is said to be {k.kappa}"
    assert case.f is not None
    H = truth.by_values(case.f, case.start) if case.values else truth.dense(case.f, case.start)
    wanted = truth.curvature(H)
    if not case.exact:
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


def _judge_train(case: Case, verdict: Verdict) -> None:
    options = {"rounds": 1, "lr": 0.3, "mu": 1e-5, "batch_size": 10_000, "eval_every": 1, "seed": 3} | case.train
    clients = case.clients
    if clients is None:  # one client, of all data
        clients = case.data if isinstance(case.data, list) and len(case.data) == 1 else [case.data]
    start = case.start
    run = lab.train(case.module, case.loss, clients, **options)
    assert verdict.right, f"it should be refused, and the loss is said to be {run.metrics.train_loss.iloc[-1]}"
    assert case.f is not None
    after = run.model
    assert _moved(start, after), "nothing was trained"
    run.more(1)
    # The loss of a round is that at the model before it: at x_0, and at x_1, which is far enough to tell.
    for r, module in enumerate((start, after)):
        seen, wanted = run.metrics.train_loss.iloc[r], truth.value(case.f, module)
        assert seen == pytest.approx(wanted, rel=FINE), f"the loss of round {r} is {seen}, the truth {wanted}"


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
    """Parameters, which have to be leaves, and buffers, as long as they have numbers that can be compared."""
    if not isinstance(module, nn.Module):
        return {}
    assert all(isinstance(p, nn.Parameter) for p in module.parameters()), "the user's module was changed"
    named = [*module.named_parameters(), *module.named_buffers()]
    lazy = nn.parameter.UninitializedTensorMixin
    plain = {n: t.detach() for n, t in named if not isinstance(t, lazy) and not t.is_meta}
    return {name: tensor.clone() for name, tensor in plain.items() if not tensor.isnan().any()}


def _moved(start: nn.Module, after: nn.Module) -> bool:
    pairs = zip(truth.trainable(start), truth.trainable(after), strict=True)
    return any(not torch.equal(a, b) for a, b in pairs)
