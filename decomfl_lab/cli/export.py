"""``decomfl export``: the trained model, for other programs."""

from dataclasses import dataclass
from pathlib import Path

from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require
from decomfl_lab.options import TRUST_CODE, option


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``decomfl export``."""

    run: Path | None = option(None, "", argument=True)
    out: Path | None = option(None, "", argument=True)
    trust_code: bool = option(False, TRUST_CODE)
    conformance: Path | None = option(
        None,
        "Write test vectors and small logs to this new folder instead: for implementations in other languages.",
        metavar="FOLDER",
    )


@command
def export(options: ExportOptions) -> None:
    """Write a run's model as safetensors, or for transformers.

    RUN is a folder of `decomfl train --out`. OUT ends in .safetensors for a file of weights by parameter name; of a run
    that fine-tuned a language model it may be a new folder, which `from_pretrained` of transformers reads and
    `decomfl train --model` too. LoRA's weights are merged.

      decomfl export runs/first digits.safetensors
      decomfl export runs/sst2 opt-sst2

    The data of the run must be available here, since the model's shape depends on them. A model that was given as an
    object in Python has no name, and is exported there.

    With --conformance no run is needed (docs/how-to/implementation.md).
    """
    if options.conformance is not None:
        require(options.run is None, "run", "be left out with --conformance", str(options.run))
        from decomfl_lab.laws.conformance import write_conformance

        write_conformance(options.conformance)
        print(f"written to {options.conformance}; README.md there says what each file is")
        return
    if options.run is None or options.out is None:
        raise InputError("RUN and OUT must be given, unless --conformance is")
    require(options.out.parent.is_dir(), "out", "be in a folder that exists", str(options.out))
    require(not options.out.is_dir(), "out", "be a file, or a folder that does not exist yet", str(options.out))
    from decomfl_lab.language.export import export as write
    from decomfl_lab.runs.folder import NotGivenError
    from decomfl_lab.runs.run import load_run

    try:
        loaded = load_run(options.run, trust_code=options.trust_code)
    except NotGivenError as error:
        raise InputError(
            f"run {options.run} must be exported from Python, as it was trained there and its {error.lacking} have no "
            f"name: run = {error.call}; safetensors.torch.save_model(run.model, {str(options.out)!r})"
        ) from None
    write(loaded.model, options.out, loaded.config.model if loaded.config.task else "")
    print(f"written to {options.out}: the model after {loaded.round} of {loaded.config.rounds} rounds")
