"""What is asked of ``decomfl paper``, checked: nothing of a request is refused once a report is begun."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from decomfl_lab.devices import find_device
from decomfl_lab.errors import require, require_choice
from decomfl_lab.laws.devices import require_bits
from decomfl_lab.options import require_options
from decomfl_lab.storage.files import require_writable
from figures.curves import Count
from paper_repro.contents import PARTS
from paper_repro.workflow import recordings
from paper_repro.workflow.options import READINGS, PaperOptions
from paper_repro.workflow.part import Options
from paper_repro.workflow.report import require_own_page
from paper_repro.workflow.scales import SCALES, changed
from paper_repro.workflow.verdicts.claim_table import ON_GPU, named
from paper_repro.workflow.verdicts.reference import curves


@dataclass(frozen=True, kw_only=True)
class Request:
    """A report that can be made."""

    asked: PaperOptions  # the options of the command
    names: Sequence[str]  # the parts, in the order of the report
    options: Options  # what they are made at
    live: bool  # whether what is recorded is shown first, and live runs are laid over it
    until: float  # the time (monotonic, in seconds) when no run is begun any more; infinite for none


def requested(asked: PaperOptions) -> Request:
    """The report that is asked for; InputError for what cannot be made."""
    started = time.monotonic()
    scale = asked.scale or "default"
    require_choice("scale", scale, SCALES)
    require_options(asked)
    place = find_device(asked.device)
    on_gpu = place.type == "cuda"
    # Without --only: on a GPU the parts that gain by it, else all.
    chosen = named("only", asked.only, PARTS) or (ON_GPU if on_gpu else tuple(PARTS))
    # The limit of time is given in one of two units, or not.
    require(asked.hours is None or asked.minutes is None, "minutes", "be left out where hours are given", asked.minutes)
    sizes, changes = changed(SCALES[scale], asked.changes)
    for flag, given in (("--from-recorded", asked.from_recorded), ("--record", asked.record)):
        alone = f"be left out with {flag}, as records are of settings as they are"
        require(not (asked.changes and given), "--set", alone, asked.changes)
    meant = not changes or any(part in chosen for part in changes)
    require(meant, "--set", "change a part that is made", asked.changes)
    if asked.reference is not None:
        curves(asked.reference)  # refuses what is no such file
    whole = asked.reference is not None or not (asked.from_recorded and asked.record)
    require(whole, "--reference", "be given where verdicts are recorded: some are on the authors' curves", None)
    for name, folder in (("--runs", asked.runs), ("--record", asked.record)):
        if folder is not None:
            require_writable(name, folder / "any")
    names = [name for name in PARTS if name in chosen]
    recorded_at = "" if asked.largest else scale  # "" for any scale
    there = not asked.from_recorded or any(recordings.is_there(name, recorded_at) for name in names)
    wanted = "name a part that is recorded" + (f" at scale {recorded_at}" if recorded_at else "")
    require(there, "--only", wanted, ",".join(names))
    require_own_page(asked.out / "report.html")
    if on_gpu and not asked.from_recorded:
        require_bits(place)
    options = Options(
        scale=sizes,
        readings=READINGS if asked.reading == "both" else (asked.reading,),
        count=cast(Count, asked.count),
        authors=asked.reference,
        device=place.type if asked.device == "auto" else asked.device,
        changes=changes,
        set=asked.changes,
    )
    # The time that the check of the bits took counts.
    hours = asked.hours if asked.minutes is None else asked.minutes / 60
    until = math.inf if hours is None else started + 3600 * hours
    return Request(asked=asked, names=names, options=options, live=asked.recorded_first, until=until)
