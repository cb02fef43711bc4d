"""``decomfl bench llm-round``: how fast a round of a language model's fine-tuning is."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.commands.shared import Rows, measured, names, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.options import option

__all__ = ["llm_round"]


@dataclass(frozen=True, kw_only=True)
class LlmRoundOptions:
    """The options of ``decomfl llm-round``."""

    model: str = option(
        "opt-0.3m", "Language model: opt-0.3m to opt-125m or smollm2-135m, with random weights, or a folder or name."
    )
    vocabulary: int = option(4096, "Number of tokens that an OPT with random weights knows.")
    batch_size: int = option(32, "Prompts in a client's batch.")
    clients: int = option(2, "Number m of sampled clients.")
    perturbations: int = option(5, "Number P of directions.")
    way: str | None = option(None, "Ways to measure; a wrong one is answered with their names. [default: all]")
    threads: int = option(1, "Number of CPU threads that torch uses.")
    device: str = option("cpu", "cpu, cuda or auto. [default: cpu]")
    repeats: int = option(5, "Rounds of each way, in turns; the fastest counts.")
    memory: bool = option(True, "Measure peaks too, of models of 16 MB and more.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def llm_round(options: LlmRoundOptions) -> None:
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

    use_threads_(options.threads)
    found = llm_rows(
        options.model,
        vocabulary=options.vocabulary,
        batch=options.batch_size,
        clients=options.clients,
        P=options.perturbations,
        repeats=options.repeats,
        ways=tuple(WAYS) if options.way is None else names("way", options.way, WAYS),
        memory=options.memory,
        device=options.device,
    )
    rows = measured(found)
    title = (
        f"A round, m = {options.clients}: {rows[0].model}, d = {rows[0].d:,}, batch {options.batch_size} of "
        f"{rows[0].tokens:.1f} tokens on average, P = {options.perturbations}, central, {rows[0].device}"
    )
    columns = {
        "way": "{way}",
        "s a round": "{seconds:.3f}",
        "losses/s": "{forwards:.1f}",
        "ratio": "{ratio:.2f}",
        "scalar error": "{scalar_error:.1e}",
        "peak models": "{peak_models:.2f}",
    }
    print_tables(Rows(title, [asdict(row) for row in rows], columns), width=120, as_json=options.as_json)
