"""``decomfl bench llm-round``: how fast a round of a language model's fine-tuning is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks.commands.shared import DEVICE, Rows, measured, names, print_tables

__all__ = ["llm_round"]


def llm_round(
    *,
    model: Annotated[
        str,
        typer.Option(
            help="Language model: opt-0.3m to opt-125m or smollm2-135m, with random weights, or a folder or name."
        ),
    ] = "opt-0.3m",
    vocabulary: Annotated[int, typer.Option(help="Number of tokens that an OPT with random weights knows.")] = 4096,
    batch_size: Annotated[int, typer.Option(help="Prompts in a client's batch.")] = 32,
    clients: Annotated[int, typer.Option(help="Number m of sampled clients.")] = 2,
    perturbations: Annotated[int, typer.Option(help="Number P of directions.")] = 5,
    way: Annotated[
        str | None, typer.Option(help="Ways to measure; a wrong one is answered with their names. [default: all]")
    ] = None,
    threads: Annotated[int, typer.Option(help="Number of CPU threads that torch uses.")] = 1,
    device: DEVICE = "cpu",
    repeats: Annotated[int, typer.Option(help="Rounds of each way, in turns; the fastest counts.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peaks too, of models of 16 MB and more.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Time a round of fine-tuning against the usual way.

    A round is one local step of all sampled clients with central differences, noise, losses and update included, on
    random tokens in prompts as long as SST-2's. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch's randn, a tensor at a time, added in place and taken back; batches in no order,
    padded to their longest; logits of the whole vocabulary at every position. "scalar error" is the largest
    |g - g_ref| over the root mean square of g_ref, whose losses are float64. Peaks are of resident memory, in models
    and with the client's own, on a prompt of two tokens, each in a process of its own.
    """
    from benchmarks.language_round import WAYS, llm_rows
    from decomfl_lab.devices import use_threads_

    use_threads_(threads)
    found = llm_rows(
        model,
        vocabulary=vocabulary,
        batch=batch_size,
        clients=clients,
        P=perturbations,
        repeats=repeats,
        ways=tuple(WAYS) if way is None else names("way", way, WAYS),
        memory=memory,
        device=device,
    )
    rows = measured(found)
    title = (
        f"A round, m = {clients}: {rows[0].model}, d = {rows[0].d:,}, batch {batch_size} of {rows[0].tokens:.1f} "
        f"tokens on average, P = {perturbations}, central, {rows[0].device}"
    )
    columns = {
        "way": "{way}",
        "s a round": "{seconds:.3f}",
        "losses/s": "{forwards:.1f}",
        "ratio": "{ratio:.2f}",
        "scalar error": "{scalar_error:.1e}",
        "peak models": "{peak_models:.2f}",
    }
    print_tables(Rows(title, [asdict(row) for row in rows], columns), width=120, as_json=as_json)
