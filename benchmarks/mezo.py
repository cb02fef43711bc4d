"""``decomfl bench mezo``: a step of ``decomfl_lab.optim.MeZO`` beside MeZO's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mould import BenchmarkRow, benchmark, column
from benchmarks.ways import IN_PLACE
from benchmarks.ways.clock import in_turns
from decomfl_lab.errors import require_int
from decomfl_lab.options import option

__all__ = ["MezoOptions", "MezoRow", "mezo"]

LR, MU = 1e-4, 1e-3


@dataclass(frozen=True, kw_only=True)
class MezoOptions:
    """The options of ``decomfl bench mezo``."""

    model: str = option("opt-0.3m", "Language model: opt-0.3m to opt-125m with random weights, or a folder.")
    vocabulary: int = option(4096, "Number of tokens that an OPT with random weights knows.")
    batch_size: int = option(16, "Prompts in a batch.")
    repeats: int = option(7, "Steps of each way that are timed, in turns; the fastest counts.")
    threads: int = option(1, "Number of CPU threads that torch uses.")


@dataclass(frozen=True, kw_only=True)
class MezoRow(BenchmarkRow):
    """What was measured of a way."""

    title = "A step of MeZO, P = 1: {model}, d = {d:,}, batch {batch_size} of random prompts"
    model: str
    d: int
    way: str = column("way")
    seconds: float = column("s a step", ".4f", "Seconds of the fastest step.")
    ratio: float = column("ratio", ".2f", "Speed beside the first row's.")


@benchmark()
def mezo(options: MezoOptions) -> Iterator[MezoRow]:
    """Time a step of decomfl_lab.optim.MeZO, without and with a log.

    In place is MeZO's way: x is moved by torch's normal numbers to both points and back, and once more for the
    update. Losses are of the token of the answer, by the whole vocabulary.
    """
    from copy import deepcopy

    import torch
    from torch import Tensor, nn

    from benchmarks.ways.in_place import in_place_scalars, move_
    from benchmarks.ways.language import RANDOM, answering, random_prompts
    from decomfl_lab.devices import use_threads_
    from decomfl_lab.optim import MeZO

    use_threads_(options.threads)
    require_int("batch_size", options.batch_size, 1)
    require_int("repeats", options.repeats, 1)
    answers = answering(options.model, options.vocabulary)
    module: nn.Module = answers.module
    vocabulary = int(module.config.vocab_size)  # type: ignore[union-attr,arg-type]
    ids, classes = random_prompts(options.batch_size, vocabulary=vocabulary, pad=answers.pad, seed=0)
    tokens = torch.tensor(answers.verbalizers)[classes]
    ids = torch.cat([ids, tokens[:, None]], 1)
    labels = torch.full_like(ids, -100)  # of no place but the last is there a loss
    labels[:, -1] = tokens
    inputs = {"input_ids": ids, "attention_mask": (ids != answers.pad).long(), "labels": labels}

    def in_place(own: nn.Module) -> Callable[[], object]:
        def step() -> None:
            with torch.inference_mode():
                (g,) = in_place_scalars(own, lambda: float(own(**inputs).loss), [0], MU)
                move_(own, 0, -LR * float(g))

        return step

    def ours(own: nn.Module, log: Path | None) -> Callable[[], object]:
        optimizer = MeZO(own.named_parameters(), LR, mu=MU, log=log)

        def loss() -> Tensor:
            return own(**inputs).loss  # type: ignore[no-any-return]

        return lambda: optimizer.step(loss)

    with tempfile.TemporaryDirectory() as folder:
        steps = {
            IN_PLACE: in_place(deepcopy(module).requires_grad_(False)),
            "decomfl_lab.optim": ours(deepcopy(module), None),
            "decomfl_lab.optim, log": ours(deepcopy(module), Path(folder, "run.dcl")),
        }
        seconds = in_turns(steps, options.repeats + 1)  # the first step of each compiles and warms
    for way, taken in seconds.items():
        yield MezoRow(
            model=options.model if options.model in RANDOM else Path(options.model).name,
            d=sum(p.numel() for p in module.parameters()),
            way=way,
            seconds=taken,
            ratio=seconds[IN_PLACE] / taken,
        )
