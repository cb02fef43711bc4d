"""``decomfl replay``: a run's model again from its log, on any machine, without the data."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import click

from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError
from decomfl_lab.interrupts import telling
from decomfl_lab.options import REQUIRED, TRUST_CODE, option
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

_HELP = table_beside(__name__, "options.toml")["replay"]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """The options of ``decomfl replay``."""

    file: Path = option(REQUIRED, "", argument=True)
    rounds: int | None = option(None, "The number of rounds after which to stop. [default: all]", flag="--round")
    measure: str = option("", _HELP["measure"])
    tolerance: float = option(0.02, _HELP["tolerance"])
    start: Path | None = option(None, _HELP["start"])
    save: Path | None = option(None, "Write the model to this file, as safetensors, if all agrees.")
    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:N or auto.")
    trust_code: bool = option(False, TRUST_CODE)
    as_json: bool = option(False, "Print one JSON object on stdout.", flag="--json")


@command
def replay(options: ReplayOptions) -> None:
    """Rebuild a run's model from its log, and compare the bits.

    FILE is the log run.dcl of `decomfl train --out`, or its folder, or the log of decomfl_lab.optim.MeZO. The model at
    x_0 is made from the configuration in the log, every record is compared with it and applied, and the model is
    compared with every digest that the log has of it. Exit code 0 if all agree, 1 if not.
    """
    from decomfl_lab.language.export import save_weights
    from decomfl_lab.progress import RunBars
    from decomfl_lab.runs.replay import read_weights
    from decomfl_lab.runs.replay import replay as run
    from decomfl_lab.storage.files import require_writable

    try:
        chosen = [int(piece) for piece in options.measure.split(",") if piece]
    except ValueError:
        raise InputError(f"measure must be rounds joined by commas, got {options.measure!r}") from None
    require_writable("save", options.save)
    weights = None if options.start is None else read_weights(options.start)
    with telling(lambda: "interrupted; nothing was written"), RunBars() as bars:
        replayed = run(
            options.file,
            weights,
            rounds=options.rounds,
            measure=chosen,
            tolerance=options.tolerance,
            device=options.device,
            trust_code=options.trust_code,
            on_round=lambda done, all_: bars.show("rounds replayed", done, all_, ""),
        )
    if options.save is not None and replayed.agrees:
        save_weights(replayed.model, options.save)
    if options.as_json:
        rows = {
            name: [dataclasses.asdict(check) | {"agrees": check.agrees} for check in checks]
            for name, checks in (("compared", replayed.compared), ("measured", replayed.measured))
        }
        facts = {name: getattr(replayed, name) for name in ("round", "rounds", "digest", "agrees", "remark")}
        print_json(facts | rows)
    else:
        print("\n".join(map(str, [replayed, *replayed.measured])))
        written = f"written to {options.save}" if replayed.agrees else f"{options.save} is not written"
        print(f"digest {replayed.digest}" + f"; {written}" * (options.save is not None))
    raise click.exceptions.Exit(0 if replayed.agrees else 1)
