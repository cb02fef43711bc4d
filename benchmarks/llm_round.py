"""``decomfl bench llm-round``: how fast is a round that fine-tunes a language model?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mould import HELPS, BenchmarkRow, benchmark, column, names
from benchmarks.ways import IN_PLACE
from benchmarks.ways.clock import in_turns
from decomfl_lab.errors import require_possible
from decomfl_lab.language.opt import SPECIAL
from decomfl_lab.options import MOST_THREADS, option

WAYS = {
    IN_PLACE: "MeZO's and the authors' way: torch's randn, x moved in place, all logits of batches in no order",
    "serial": "a point x + μz at a time; verbalizers' logits, prompts in order of length",
    "auto": "what decomfl train does",
    "lean": "what decomfl train --lean does: a layer of x + μz at a time",
    "bfloat16": "what decomfl train --compute bfloat16 does",
}
"""How a round can be done."""


@dataclass(frozen=True, kw_only=True)
class LlmRoundOptions:
    """The options of ``decomfl bench llm-round``."""

    model: str = option("opt-0.3m", HELPS["llm-round"]["model"])
    vocabulary: int = option(4096, "Number of tokens that an OPT with random weights knows.", ge=2 + len(SPECIAL))
    batch_size: int = option(32, "Prompts in a client's batch.", ge=1)
    clients: int = option(2, "Number m of sampled clients.", symbol="m", ge=1)
    perturbations: int = option(5, "Number P of directions.", symbol="P", ge=1)
    way: str | None = option(None, "Ways to measure; a wrong one is answered with their names. [default: all]")
    threads: int = option(1, "Number of CPU threads that torch uses.", ge=1, le=MOST_THREADS)
    device: str = option("cpu", "cpu, cuda, cuda:N or auto. [default: cpu]")
    repeats: int = option(5, "Rounds of each way, in turns; the fastest counts.", ge=1)


@dataclass(frozen=True, kw_only=True)
class LlmRoundRow(BenchmarkRow):
    """What was measured: a round of m clients, central differences, the last round's update and all noise included."""

    title = (
        "A round, m = {clients}: {model}, d = {d:,}, batch {batch} of {tokens:.1f} tokens on average, "
        "P = {directions}, central, {device}"
    )
    model: str
    d: int
    way: str = column("way")
    batch: int
    clients: int
    directions: int
    threads: int  # torch's number of threads
    device: str
    tokens: float  # mean length of a prompt
    seconds: float = column("s a round", ".3f", "Seconds of the fastest of the repeated rounds.")
    ratio: float = column("ratio", ".2f")
    scalar_error: float = column("scalar error", ".1e", HELPS["llm-round"]["scalar_error"])


def quoted(rows: Sequence[LlmRoundRow], _: object) -> tuple[str, str] | None:
    """What the README says: what decomfl train does."""
    row = next((row for row in rows if row.way == "auto"), None)
    if row is None:
        return None
    return (
        f"a round of a language model of {row.d:,} parameters",
        f"{row.ratio:.1f} times the speed of the authors' way",
    )


@benchmark(quoted)
def llm_round(options: LlmRoundOptions) -> Iterator[LlmRoundRow]:
    """Time a round of fine-tuning against the usual way.

    A round is one local step of all sampled clients with central differences, noise, losses and update included, on
    random tokens in prompts as long as SST-2's. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch's randn, a tensor at a time, added in place and taken back; batches in no order,
    padded to their longest; logits of the whole vocabulary at every position.
    """
    import numpy as np
    import torch

    from benchmarks.ways import language
    from benchmarks.ways.mezo import scalar_error
    from decomfl_lab.devices import describe, find_device, use_tf32_, use_threads_
    from decomfl_lab.layout import Layout

    use_threads_(options.threads)
    m, batch, P = options.clients, options.batch_size, options.perturbations
    sizes = batch, m, P, options.repeats
    require_possible("batch, clients, P and repeats", sizes, operations=1e6 * math.prod(sizes))
    require_possible("batch and clients", (batch, m), memory=100.0 * batch * m)
    require_possible("vocabulary", options.vocabulary, memory=100 * options.vocabulary)
    chosen = [IN_PLACE, *(way for way in names("way", options.way, WAYS) if way != IN_PLACE)]
    place = find_device(options.device)
    use_tf32_(False)

    module = language.answering(options.model, options.vocabulary).to(place)
    config: Any = module.module.config
    prompts = [
        language.random_prompts(batch, vocabulary=int(config.vocab_size), pad=module.pad, seed=i) for i in range(m)
    ]
    batches = [(ids.to(place), classes.to(place)) for ids, classes in prompts]
    rounds: dict[str, language.Way] = {
        way: language.InPlaceRound(module, batches, P)
        if way == IN_PLACE
        else language.LlmFederation(module, batches, P, way)
        for way in chosen
    }
    # The first round of every way is compared with float64. After that its code is warm.
    references = dict.fromkeys(chosen, language.reference_scalars(module, batches, P))
    references[IN_PLACE] = language.InPlaceRound(module, batches, P, dtype=torch.float64)()  # its own directions
    errors = {way: scalar_error(rounds[way](), references[way]) for way in chosen}
    seconds = in_turns(rounds, options.repeats)
    del rounds
    tokens = float(np.mean([(ids != module.pad).sum(1).double().mean().item() for ids, _ in batches]))
    for way in chosen:
        yield LlmRoundRow(
            model=options.model if options.model in language.RANDOM else Path(options.model).name,
            d=Layout.of(module).d,
            way=way,
            batch=batch,
            clients=m,
            directions=P,
            threads=torch.get_num_threads(),
            device=describe(place),
            tokens=tokens,
            seconds=seconds[way],
            ratio=seconds[IN_PLACE] / seconds[way],
            scalar_error=errors[way],
        )
