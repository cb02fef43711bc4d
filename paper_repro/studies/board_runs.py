"""The races behind the board: η of a method on a problem by one rule, its runs to the target, and what it costs."""

import itertools
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.engines.base import Line, Serial
from decomfl_lab.errors import DivergedError
from decomfl_lab.federations.federation import Federation
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.files import write_atomically
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.methods.traffic import model_bytes
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.objectives.evaluation import evaluate
from decomfl_lab.objectives.objective import ModuleObjective, mean_losses
from decomfl_lab.progress import Progress
from decomfl_lab.protocol.delivery import ModelsDown, receive
from decomfl_lab.provenance import provenance
from decomfl_lab.records.pool import OffGridError
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Materials, Prepared, fitted, held_out
from decomfl_lab.runs.run import Run
from paper_repro.language_models.language import pretraining
from paper_repro.workflow.data import digest_of, missing
from paper_repro.workflow.runs import Job, Report, Result, Work
from paper_repro.workflow.scales import SCALES, Race, Sizes
from paper_repro.workflow.series import BOARD

LINES: Final[Mapping[str, Mapping[str, Any]]] = {
    **{kind.__name__: {"method": name} for name, kind in METHODS.items()},
    **BOARD["variants"],
}
"""The lines of the board: the methods of the registry by the names of their classes, and the variants."""
MODELS: Final = SCALES["default"].pretrained  # the small language models of the board, the same at every scale
TOP, STEP, HIGHEST, FLOOR = 0, 2, 12, -32
"""Where the search for η = 10^(n/4) begins, its step, and the least and the largest n."""
PATIENCE: Final = 10  # the share of the rounds after which a run that has got worse is given up is one in so many
WORSE: Final = 1.05
"""A run has got worse when its test loss is above this many times that of its start: less may be noise."""
RULE: Final[str] = BOARD["rule"]
FOLLOWS: Final[Mapping[str, str]] = BOARD["follows"]
"""What a client has the global model from, and with that whether the method is replayable and why."""
_KEPT: Final = 80  # evaluations of a run that are kept at most, with the last: enough for a curve


class Score(NamedTuple):
    """How well a learning rate did on the tuning seeds; the smaller the better."""

    rounds: float  # rounds to the target, summed over the seeds; infinite if one did not get there
    hopeless: bool  # whether a run diverged or was given up
    loss: float  # the last test loss


def searched(score: Callable[[int, float], Score]) -> dict[int, Score]:
    """The scores of the learning rates 10^(n/4) that ``RULE`` looks at, by n, in their order.

    Args:
        score: Of n and of the rounds from which on it can no longer be the best.
    """
    found: dict[int, Score] = {}

    def look(n: int) -> int:
        """Score n, and return the best so far."""
        found[n] = score(n, min((each.rounds for each in found.values()), default=math.inf))
        return min(found, key=lambda at: found[at])

    for n in range(TOP, FLOOR - 1, -STEP):
        best = look(n)
        if not found[best].hopeless and n <= best - 2 * STEP:
            break
    for n in range(TOP + STEP, HIGHEST + 1, STEP):
        if best != n - STEP:
            break
        best = look(n)
    for n in (best - STEP // 2, best + STEP // 2):
        look(n)
    return found


def absent(size: Sizes) -> dict[str, str]:
    """{problem: what has to be done before its races can be run here} of those that cannot be."""
    tasks = {name: own for name in size.races if "task" in (own := BOARD["problems"][name])}
    todo = {name: missing([own["task"]], [own["model"]], MODELS) for name, own in tasks.items()}
    return {name: what for name, what in todo.items() if what}


class _Over(Exception):  # noqa: N818 (nothing is wrong)
    """The race is over, for the reason that is its argument."""


def configuration(race: Race, problem: str, line: str) -> TrainConfig:
    """The runs of a line on a problem, whatever their η and seed."""
    own = dict(LINES[line])
    kind = METHODS[own.pop("method")]
    # A method that has one direction a step keeps to it, and has so many rounds for one of the others.
    directions = kind.options().get("perturbations")
    alone_a_step = directions is not None and directions.default == 1
    rounds_for_one = int(BOARD["common"]["perturbations"]) if alone_a_step else 1
    alone = {"clients": 1, "sampled": 1} if own.pop("alone", kind.alone) else {}
    known = {name: value for name, value in BOARD["common"].items() if name in kind.options()}
    if rounds_for_one > 1:
        del known["perturbations"]
    fast = {"rebuild": "copy"} if "rebuild" in kind.options() else {}
    given = {"rounds": rounds_for_one * race.rounds, "eval_every": rounds_for_one * race.every}
    given |= BOARD["problems"][problem]
    return TrainConfig(kind.of({**known, **fast, **own}), **{**given, **alone})


def races(size: Sizes, problem: str, line: str) -> Work:
    """A method on a problem: η by ``RULE``, and a race for each of the table's seeds."""
    race = size.races[problem]
    config = configuration(race, problem, line)
    title = f"board, {problem}: {line}"
    model = MODELS.get(BOARD["problems"][problem]["model"]) if config.task else None
    job = Job(config, {}, title, None if model is None else pretraining(model))
    # About six runs of all rounds, of two passes a direction.
    passes = 2 * config.method.plain().get("perturbations", 1) * (50 if config.task else 1)
    return Work(
        title=title,
        function=_raced_to_the_target,
        arguments={"size": size.but(races={problem: race}), "job": job},
        labels={"problem": problem, "line": line},
        needs=job.needs,
        data=partial(digest_of, config),
        layers=("theory",),
        cost=float(6 * config.rounds * config.sampled * config.batch_size * passes),
    )


def _raced_to_the_target(folder: Path, report: Report, size: Sizes, job: Job) -> Result:
    """Evaluations of the table's runs, thinned, and the last ones of the candidates for η, all with the line's costs.

    Every run leaves a table, and one under way a checkpoint, to go on with.
    """
    (race,) = size.races.values()
    config, dataset = _placed(job, folder.parent)
    # The test loss at x_0, which is the same for every method, up to the seed's own initial weights.
    start = evaluate(
        Run(config, dataset=dataset).model,
        BatchLoss.of(Materials(config).loss_function()),
        *held_out(dataset, config.test_examples),
        config.batch_size,
    )["test_loss"]
    done = itertools.count(1)

    def shown(at: Progress) -> None:
        n = next(done)
        report(replace(at, round=n, rounds=max(n + 1, 6 * config.rounds)))

    def raced(n: int, seed: int, limit: float, start: float) -> pd.DataFrame:
        own = config.but(lr=_eta(n), seed=seed)
        return _raced(race, own, folder / f"{n}-{seed}.csv", dataset, start, limit, shown)

    def score(n: int, least: float) -> Score:
        total = 0.0
        for seed in size.tuning_seeds:
            last = raced(n, seed, least - total, start).iloc[-1]
            loss = math.inf if math.isnan(last["test_loss"]) else last["test_loss"]
            if last["ended"] != "reached":
                return Score(math.inf, last["ended"] in ("diverged", "given up"), loss)
            total += last["round"]
        return Score(total, False, loss)

    scores = searched(score)
    best = min(scores, key=lambda n: scores[n])
    for seed in size.seeds:
        raced(best, seed, math.inf, math.inf)  # to its end, whatever becomes of it
    report(Progress(1, 1))
    told: dict[str, Any] = {
        "method": config.method.name,
        "M": config.clients,
        "m": config.sampled,
        "B": config.batch_size,
        "candidates": len(scores),
    }
    # ``what`` is evaluation, of a run of the table, or candidate, the last one of a tuning run.
    frames = []
    for seed in size.seeds:
        rows = pd.read_csv(folder / f"{best}-{seed}.csv")
        # At most about ``_KEPT`` rows, denser at the beginning, with the last.
        places = np.unique(np.geomspace(1, len(rows), _KEPT).round().astype(int)) - 1
        frames.append(rows.iloc[places].assign(what="evaluation", seed=seed, eta=_eta(best)))
    for n, seed in itertools.product(sorted(scores), size.tuning_seeds):
        if (folder / f"{n}-{seed}.csv").exists():
            rows = pd.read_csv(folder / f"{n}-{seed}.csv").tail(1)
            frames.append(rows.assign(what="candidate", seed=seed, eta=_eta(n)))
    table = pd.concat(frames, ignore_index=True)
    return table.assign(**told, **costs(config, dataset, size.missed)), provenance(dataset)


def _placed(job: Job, root: Path) -> tuple[TrainConfig, Dataset]:
    """The runs with the folder of the model that they begin with, and their data."""
    own = job.placed(root)
    dataset = own.dataset()
    return own.config if own.config.task else fitted(own.config, dataset), dataset


def _raced(
    race: Race,
    config: TrainConfig,
    path: Path,
    dataset: Dataset,
    start: float,
    limit: float,
    report: Callable[[Progress], None],
) -> pd.DataFrame:
    """The evaluations of a run until it is over, with ``ended`` saying why; those in the file, if it is there."""
    if path.exists():
        return pd.read_csv(path)
    ended, every = "out of rounds", config.eval_every
    trial = max(every, -(-config.rounds // PATIENCE) // every * every)

    def watch(at: Progress) -> None:
        if at.round % every == 0 or at.round == config.rounds:
            if race.reached(at.test_accuracy, at.test_loss):
                raise _Over("reached")
            if at.round >= limit:
                raise _Over("cut")
            if at.round == trial and not at.test_loss <= WORSE * start:
                raise _Over("given up")
        report(at)  # last: who interrupts here goes on with a round that is judged

    run, under_way = Run(config, dataset=dataset), path.with_suffix("")
    try:
        run.train(out=under_way, on_round=watch)
    except _Over as over:
        ended = str(over)
    except (DivergedError, OffGridError):
        ended = "diverged"
    rows = run.metrics
    rows = rows if len(rows) else pd.DataFrame([{"round": 0, "test_loss": math.inf}], columns=rows.columns)
    rows = rows.assign(ended=ended)
    write_atomically(path, rows.to_csv(index=False))
    shutil.rmtree(under_way, ignore_errors=True)  # of a run that diverged at once there is none
    return rows


def _eta(n: int) -> float:
    """10^(n/4), to four digits."""
    return float(f"{10 ** (n / 4):.4g}")


# --- costs ------------------------------------------------------------------------------------------------------------


class _Meter:
    """f(x) = ½ Σ_{j<1000} x_j², without data: it counts how often a client asks for it, and for its gradient."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

    def __call__(self, x: Tensor, step: int) -> float:  # noqa: ARG002 (of an objective)
        """See ``Objective``."""
        self.forward += 1
        return float(0.5 * x[:1000].double().square().sum())

    def value_and_gradient(self, x: Tensor, step: int) -> tuple[float, Tensor]:
        """See ``Differentiable``."""
        self.backward += 1
        gradient = torch.zeros_like(x)
        gradient[:1000] = x[:1000]
        return self(x, step), gradient


@dataclass(frozen=True, kw_only=True)
class _Caught(Method):
    """A method that gives back what a run would build its federation from."""

    def federation(self, setting: TrainingSetting) -> Federation:
        """The setting, instead of a federation."""
        return cast(Federation, setting)


def costs(config: TrainConfig, dataset: Dataset, missed: int) -> dict[str, Any]:
    """What a client of a method computes, keeps, sends and gets, by its own server and clients on a loss without data.

    Client 0 of two takes part in every round but the last, client 1 in the last alone, so that it has missed ``missed``
    rounds and is brought up to date.

    Args:
        config: A run of the method.
        dataset: The run's data, of which the model's size follows.
        missed: Rounds.

    Returns:
        d; forward and backward, passes of a client's round; kept_bytes between rounds; round_up and round_down, bytes
        of a client's round; up_bits and down_bits that one direction more adds to them, NaN for methods without
        directions; back_bytes and back_seconds, what client 1 gets and takes to have the global model; follows, what
        it has it from (``FOLLOWS``), and exact, whether bit for bit; pace, see ``_pace``.
    """
    caught = Prepared.of(fitted(config.but(_Caught()), dataset), dataset).federation()
    real = cast(TrainingSetting, caught)
    setting = replace(real, sampled=1, engine=Serial())
    method = config.method.but({"lr": 1e-6})
    plain = method.plain()
    method = method.but({"rebuild": "replay"}) if "rebuild" in plain else method
    found = _round_costs(method, setting) | _return_costs(method, setting, missed)
    found["pace"] = _pace(method, real, int(found["forward"]))
    few, many = 16, 80
    bits = dict.fromkeys(("up", "down"), math.nan)
    if "perturbations" in plain and not method.alone:
        pair = [_round_costs(method.but({"perturbations": P}), setting) for P in (few, many)]
        bits = {way: 8 * (pair[1][f"round_{way}"] - pair[0][f"round_{way}"]) / (many - few) for way in bits}
    return {"d": setting.x.numel(), **found, **{f"{way}_bits": value for way, value in bits.items()}}


def _advanced(method: Method, setting: TrainingSetting, rounds: int) -> tuple[Federation, _Meter]:
    """A federation of two clients (or the one agent) after rounds with client 0 alone, and what has counted for it."""
    meters = [_Meter() for _ in range(1 if method.alone else 2)]
    federation = method.federation(replace(setting, objectives=meters))
    drawing: Any = getattr(federation, "server", federation)
    drawing.sample = lambda: (0,)
    for _ in range(rounds):
        federation.advance()
    return federation, meters[0]


def _round_costs(method: Method, setting: TrainingSetting) -> dict[str, float]:
    """What client 0 computes, sends and gets in a round, once it has been there in those before."""
    federation, meter = _advanced(method, setting, 2)

    def counted() -> tuple[int, int, int, int]:
        ledger = federation.ledger
        return meter.forward, meter.backward, ledger.up[0].bytes, ledger.down[0].bytes

    before = counted()
    federation.advance()
    names = ("forward", "backward", "round_up", "round_down")
    return {name: late - early for name, early, late in zip(names, before, counted(), strict=True)}


def _return_costs(method: Method, setting: TrainingSetting, missed: int) -> dict[str, Any]:
    """What client 0 keeps, and what client 1, which was never there, gets and takes to have the global model."""
    federation, _ = _advanced(method, setting, missed)
    kept = {"kept_bytes": _held_bytes(getattr(federation, "clients", [federation])[0])}
    if not isinstance(federation, DeComFLFederation):
        back = 0 if method.alone else model_bytes(setting.x.numel())
        follows = "nobody" if method.alone else "vectors"
        return {**kept, "back_bytes": back, "back_seconds": 0.0, "follows": follows, "exact": True}
    client, messages = federation.clients[1], _opened(federation, 1)
    started = time.perf_counter()
    client.replica.catch_up(receive(client, messages).records)
    there = client.replica.x.numel() == setting.x.numel()  # a replica may make its x when it is first asked for
    seconds = time.perf_counter() - started
    return {
        **kept,
        "back_bytes": sum(map(len, messages)),
        "back_seconds": seconds,
        "follows": "models" if isinstance(federation.delivery, ModelsDown) else "records",
        "exact": there and client.replica.digest() == federation.observer.digest(),
    }


def _opened(federation: DeComFLFederation, i: int) -> Sequence[bytes]:
    """The messages with which a round begins for a client, which takes part in it alone."""
    delivery, client = federation.delivery, federation.clients[i]
    reports = [federation.ledger.sent(client.id, client.report(), upwards=True)] if delivery.wants_reports else []
    ((_, messages),) = delivery.open((i,), reports)
    return messages


def _pace(method: Method, setting: TrainingSetting, passes: int) -> float:
    """The speed of a client's perturbed forward passes over that of plain ones, by torch or by the run's own engine.

    The plain passes are those of the faster of the two, the engine's at x + 0·z. The fastest of a few rounds of each in
    turn, on the first client's first batch; NaN where clients send no scalars, or measure gradients.
    """
    federation = method.federation(setting)
    if not isinstance(federation, DeComFLFederation) or method.gradients:
        return math.nan
    client, objective = federation.clients[0], cast(ModuleObjective, setting.objectives[0])
    plan = receive(client, _opened(federation, 0))
    if client.replica.forgotten:
        client.replica.restore(federation.observer.snapshot())

    def perturbed() -> None:
        client.steps_taken = 0
        client.local_update(plan)

    def at_x() -> None:
        line = Line(client.replica, plan.seeds[0], plan.distribution)
        setting.engine.losses(line, [(p, 0.0) for p in range(passes)], [(objective, 0)])

    def by_torch() -> None:
        objective.layout.bind(objective.module, setting.x)
        inputs, targets = objective.batch(0)
        for _ in range(passes):
            mean_losses(objective.module, [objective.measure], inputs, targets, len(targets))

    times: dict[Callable[[], None], float] = {}
    for work in (perturbed, at_x, by_torch) * 6:
        started = time.perf_counter()
        work()
        times[work] = min(times.get(work, math.inf), time.perf_counter() - started)
    return min(times[at_x], times[by_torch]) / times[perturbed]


def _held_bytes(holder: object) -> int:
    """The bytes of all vectors that a client, or its replica, holds."""
    total = 0
    for name, value in vars(holder).items():
        if name == "replica":
            total += _held_bytes(value)
        for vector in value.values() if isinstance(value, dict) else [value]:
            if isinstance(vector, Tensor | np.ndarray) and not getattr(vector, "is_meta", False):
                total += int(vector.nbytes)
    return total
