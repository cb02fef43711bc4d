"""A situation: what a user brings to a door of the lab, what is right, and the judge.

An entry of a table has a name, for each door what is right, and then a module, a loss, data and the function f that is
meant: ``at("tied weights", kappa=RIGHT, train=RIGHT)(zoo.tied, loss, data, f)``. Right is ``RIGHT`` (the number is that
of f), ``refused(word)`` (an InputError of one line with the word, a regular expression), or ``either(word)`` (one of
the two). Further options of a door stand with its verdict: ``RIGHT.given(lr=0.1)``.
"""

import copy
import itertools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

import decomfl_lab as lab
import hessian
from decomfl_lab.errors import DivergedError, LabWarning, RoundingWarning
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.optim import MeZO, MeZOTraining
from tests.decomfl_lab.language.tiny import transformers
from tests.nets import seeded
from tests.situations import truth
from tests.situations.truth import Function
from tests.situations.zoo import DATA, ce, mlp, wide

FINE = 1e-3
"""Relative error at most, of users' models in float32."""

LR = 1e-5
"""Of Trainers: so small that two ways to train have the same losses, up to ``CLOSE``."""

CLOSE = 2e-3
EXACT = {"step", "epoch", "learning_rate", "eval_parts", "num_input_tokens_seen"}


# --- entries ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """Whether a right answer is right, the word of a refusal if that is, and the options that a door is given.

    With a right answer the door has to tell what ``told`` is a word of, or nothing. Where the loss jumps nobody knows
    what a mean of its values at x ± μz has to be; then it is not ``known``.
    """

    right: bool
    word: str | None = None
    told: str | None = None
    known: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def given(self, **options: Any) -> Self:
        return replace(self, options=options)


RIGHT = Verdict(True)


def refused(word: str) -> Verdict:
    return Verdict(False, word)


def either(word: str) -> Verdict:
    return Verdict(True, word)


def told(word: str, *, known: bool = True) -> Verdict:
    """The answer is that of f, if it is known, with a warning that has the word."""
    return Verdict(True, told=word, known=known)


@dataclass(frozen=True)
class Of:
    """A loss, or an option, that is made of the user's module, as one that has it in its closure."""

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
        made = replace(entry, loss=loss, f=entry.f or mean(loss, DATA if callable(entry.data) else entry.data))
        before, start = _state(module), truth.copied(module) if isinstance(module, nn.Module) else None
        with warnings.catch_warnings(record=True) as said, torch.random.fork_rng():
            warnings.simplefilter("always")
            torch.manual_seed(entry.seed)
            try:
                DOORS[self.door](made, module, start, self.verdict)
                _judge_words([each.message for each in said if isinstance(each.message, LabWarning)], self.verdict)
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
    options = {name: value.make(module) if isinstance(value, Of) else value for name, value in verdict.options.items()}
    with entry.inside():
        k = hessian.effective_rank(module, entry.loss, entry.data, **{"products": _size(module) + 5} | options)
    assert verdict.right, f"it should be refused, and κ is said to be {k.kappa}"
    # κ, tr(H) and ‖H‖₂ are those of the dense matrix.
    wanted = truth.curvature(truth.by_values(entry.f, start) if entry.values else truth.dense(entry.f, start))
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
    if not verdict.known:
        return
    # The loss of a round is that at the model before it: at x_0, and at x_1, which is far enough to tell.
    for r, at in enumerate((start, after)):
        seen, wanted = run.metrics.train_loss.iloc[r], truth.value(entry.f, at)
        assert seen == pytest.approx(wanted, rel=FINE), f"the loss of round {r} is {seen}, the truth {wanted}"


def _judge_optim(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    named = [*module.named_parameters(), *module.named_buffers()]
    optimizer = MeZO(named, 1e-4, **({"mu": 1e-4} | verdict.options))
    # Data that are a function are what a closure draws its batches from.
    loss, batches = BatchLoss.of(entry.loss), entry.data() if callable(entry.data) else itertools.repeat(*entry.data)
    for at in (start, module):  # the loss of a step is that before it
        wanted = truth.value(entry.f, at)
        with entry.inside():
            seen = optimizer.step(lambda: loss(module, *next(batches)))
        assert verdict.right, f"it should be refused, and the loss is said to be {seen}"
        right = not verdict.known or seen == pytest.approx(wanted, rel=FINE)
        assert right, f"the loss is {seen}, the truth {wanted}"
    module.load_state_dict(start.state_dict())


class Plain:
    """What stands before a Trainer, and keeps the learning rate and the batches of every step."""

    def get_batch_samples(self, *args: Any) -> Any:
        """See ``Trainer.get_batch_samples``, which training alone asks."""
        own: Any = self
        found = super().get_batch_samples(*args)  # type: ignore[misc]
        batches = [batch["input_ids"].tolist() for batch in found[0]]
        vars(self).setdefault("batches", []).append((own.optimizer.param_groups[0]["lr"], batches))
        return found


class Mine(Plain, MeZOTraining):
    """The same with MeZO."""


def made(kind: type, module: Any, folder: Path, loss: Any = None, **options: Any) -> Any:
    """A Trainer that makes a checkpoint every 2 steps of 4; one of MeZO has a log in the folder."""
    library = transformers()
    fixed = {"max_steps": 4, "save_steps": 2, "eval_steps": 2, "logging_steps": 1, "learning_rate": LR, "use_cpu": True}
    fixed |= {"per_device_train_batch_size": 5, "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(4, 90, (16, 6))]
    decay, optimizer = options.get("weight_decay", 0.0), None
    if issubclass(kind, MeZOTraining):
        optimizer = MeZO(module.named_parameters(), LR, weight_decay=decay, log=folder / "run.dcl")
    return type("Made", (kind, library.Trainer), {})(
        module,
        library.TrainingArguments(str(folder), **fixed | options),
        train_dataset=rows,
        eval_dataset=rows[:5],
        compute_loss_func=loss,
        compute_metrics=lambda seen, compute_result=True: {"parts": len(seen.label_ids)},
        optimizers=(optimizer, None),
    )


def _judge_trainer(entry: Entry, module: Any, start: Any, verdict: Verdict) -> None:
    """Steps, rates, batches, losses, evaluations and checkpoints are a plain Trainer's; log and resumed run agree.

    What should be refused is set in the arguments of a Trainer that is made, as this machine may have nothing for it;
    nothing is written then.
    """
    options, state = verdict.options, torch.get_rng_state()
    with tempfile.TemporaryDirectory() as name, entry.inside():
        folder, other = Path(name, "mine"), Path(name, "plain")

        def trained(kind: type, folder: Path, resumed: Path | None = None) -> Any:
            torch.set_rng_state(state)
            before = options if verdict.right else {}
            trainer = made(kind, copy.deepcopy(start), folder, entry.loss, **before)
            vars(trainer.args).update({} if verdict.right else options)
            trainer.train(resume_from_checkpoint=resumed and str(resumed))
            return trainer

        try:
            mine = trained(Mine, folder)
        except lab.InputError:
            assert not list(folder.iterdir()), "something was written before the refusal"
            raise
        assert verdict.right, f"it should be refused, and {mine.state.global_step} steps were taken"
        plain = trained(Plain, other)
        assert mine.batches == plain.batches
        assert {path.name for path in folder.glob("checkpoint-*")} == {path.name for path in other.glob("checkpoint-*")}
        for own, theirs in zip(mine.state.log_history, plain.state.log_history, strict=True):
            assert own.keys() == theirs.keys() - {"grad_norm"}
            assert all(own[key] == theirs[key] for key in own.keys() & EXACT)
            for key in own.keys() & {"loss", "train_loss", "eval_loss"}:
                assert own[key] == pytest.approx(theirs[key], rel=CLOSE), key
        found, left = lab.replay(folder / "run.dcl", start), mine.model
        assert found.agrees
        assert found.compared[-1].round == found.rounds, "the log is not sealed"
        assert not same(found.model, start), "nothing was trained"
        if options.get("load_best_model_at_end"):
            left = type(start).from_pretrained(folder / "checkpoint-4")
            assert same(mine.model, type(start).from_pretrained(mine.state.best_model_checkpoint))
        assert same(found.model, left)
        saved = folder / "checkpoint-2"
        if options.get("save_only_model"):
            with pytest.raises(lab.InputError, match=r"have the state of the optimizer \(save_only_model=False\)"):
                trained(Mine, folder, saved)
        elif saved.exists() and not options.get("ignore_data_skip"):
            again = trained(Mine, folder, saved)
            assert again.batches == mine.batches[-len(again.batches) :]
            assert same(again.model, mine.model)
        assert same(lab.replay(folder / "run.dcl", start).model, found.model)


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether the parameters are equal to the bit, and of one type."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


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
    "trainer": _judge_trainer,
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


def _judge_words(words: list[LabWarning], verdict: Verdict) -> None:
    """That differences are rounding, as of a loss with a large constant, is no fault of what is brought."""
    assert not any("\n" in str(each) for each in words)
    if verdict.told is None:
        faults = [each for each in words if not isinstance(each, RoundingWarning)]
        assert not faults, f"nothing is wrong, and it is told: {faults}"
    else:
        assert any(re.search(verdict.told, str(each)) for each in words), f"{verdict.told!r} is not in: {words}"


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
