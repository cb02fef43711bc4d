"""``decomfl verify``: put an implementation of seed/revert logic to the laws."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require
from decomfl_lab.interrupts import telling
from decomfl_lab.options import option
from decomfl_lab.plugins import named
from decomfl_lab.storage.files import require_writable, write_atomically
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from decomfl_lab.laws.contract import Implementation
    from decomfl_lab.laws.outcomes import Outcome, Outcomes
    from decomfl_lab.laws.worlds.breadth_first_search import Explored

_HELP = table_beside(__name__, "options.toml")["verify"]
_LACKS = "a part is not offered; where it is deleted the lab's takes its place"
_MARKS = {"holds": ".", "broken": "x", "crashed": "!", "refused": " ", "skipped": " ", "not yours": " "}


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """The options of ``decomfl verify``."""

    target: str | None = option(None, _HELP["target"])
    target_template: bool = option(False, "Print a file for --target, with all that the laws use, to fill in.")
    plant: str | None = option(None, _HELP["plant"])
    device: str | None = option(None, _HELP["device"])
    update: str | None = option(None, _HELP["update"])
    module: str | None = option(None, "With --update: module:function that makes a torch module of yours, tried too.")
    tolerance: float = option(0.0, _HELP["tolerance"])
    identity: Path | None = option(None, _HELP["identity"])
    shared: tuple[str, ...] = option((), "With --identity: a coordinate whose numbers all have one noise. Repeatable.")
    write: Path | None = option(None, _HELP["write"])
    law: tuple[str, ...] = option((), "Try only this law (may be given several times).")
    cases: int | None = option(None, _HELP["cases"])
    seed: int = option(0, "Seed of the random cases.")
    states: bool = option(False, _HELP["states"])
    histories: int | None = option(None, _HELP["histories"], ge=1)
    as_json: bool = option(False, "Print rows of law, cases, passed as JSON.", flag="--json")
    junit: Path | None = option(None, "Write the outcomes to this file too, as JUnit's XML: a test case a law.")


@command
def verify(options: VerifyOptions) -> None:
    """Check, law by law, that rebuilt models are the server's bits.

    Exit code 0 if all laws hold, 1 if one is broken, 3 if none could be tried, or if the target's `supports` refuses
    all cases of one that its `skips` does not name; a broken law prints its smallest counter-example. With
    `--plant all`, 1 if the law that is meant to catch a fault does not. With `--states`
    or `--histories`, 1 and a short history if one ends wrongly.
    """
    if options.target_template:
        from decomfl_lab.laws.templates.kits import target_template

        print(target_template(), end="")
        raise click.exceptions.Exit
    anybodys = options.update is not None or options.identity is not None
    for name, other in {"module": "update", "tolerance": "update", "shared": "identity"}.items():
        value, usual = getattr(options, name), getattr(type(options), name)
        require(value == usual or getattr(options, other) is not None, name, f"come with {other}", value)
    require(options.write is None or not anybodys, "write", "be left out with update and identity", str(options.write))
    if options.write is not None:
        from decomfl_lab.laws.templates.kits import write_kits

        for path in write_kits(options.write):
            print(path)
        raise click.exceptions.Exit
    started = time.monotonic()
    if anybodys:
        raise click.exceptions.Exit(_anybodys(options, started))
    from decomfl_lab.laws.check import load_implementation, planted
    from decomfl_lab.laws.check import verify as run

    def announce(name: str = "") -> None:
        """Have a terminal say what is being tried, or nothing any more."""
        if sys.stderr.isatty():
            words = f"{name} ..." if name else ""
            print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)

    of_laws = options.junit is None or not (options.states or options.plant == "all")
    require(of_laws, "junit", "be of laws that are tried", options.junit)
    require_writable("junit", options.junit)
    if options.plant == "all":
        require(not options.states, "plant", "name one fault with --states", options.plant)
        require(options.device is None, "plant", "be left out where device is given", options.plant)
        theirs = None if options.target is None else load_implementation(options.target, None)
        cases = 6 if options.cases is None else options.cases
        with telling(lambda: "interrupted; nothing was kept"):
            table = planted(theirs, cases=cases, seed=options.seed, laws=options.law, on_fault=announce)
        announce()
        raise click.exceptions.Exit(_tell_planted(theirs, table, options, started))

    implementation = load_implementation(options.target, options.plant, options.device)
    if options.states:
        require(options.histories is None, "histories", "be left out with --states", options.histories)
        value = options.law, options.cases
        require(value == ((), None), "law and cases", "be left out with --states", value)
        raise click.exceptions.Exit(_search(implementation, options.as_json))
    if options.histories is not None:
        others = options.law, options.cases, options.junit
        require(not any(others), "law, cases and junit", "be left out with --histories", others)
        ours = options.target is None and options.plant is None and options.device is None
        raise click.exceptions.Exit(_simulate(None if ours else implementation, options))
    from decomfl_lab.laws.outcomes import Outcomes

    outcomes = Outcomes()

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        announce()
        if not options.as_json:
            print(outcomes.told(-1), flush=True)

    def interrupted() -> str:
        announce()
        held = [outcome.law for outcome in outcomes if outcome.status == "holds"]
        names = f": {', '.join(held)}" if held else ""
        return f"interrupted; {len(held)} of the {outcomes.tried} laws tried so far held{names}"

    with telling(interrupted):
        count = 100 if options.cases is None else options.cases
        run(implementation, cases=count, seed=options.seed, laws=options.law, on_law=announce, on_outcome=tell)
    raise click.exceptions.Exit(_ends(implementation.name, outcomes, options, f"seed {options.seed}, ", started))


def _ends(name: str, outcomes: Outcomes, options: VerifyOptions, how: str, started: float) -> int:
    """The last line, or all as JSON, and JUnit's file; the exit code."""
    if options.junit is not None:
        write_atomically(options.junit, outcomes.junit(name))
    if options.as_json:
        print_json([{**dataclasses.asdict(outcome), "passed": outcome.passed} for outcome in outcomes])
    else:
        print(f"{name}: {outcomes.summary} ({how}{time.monotonic() - started:.0f} s)")
    return outcomes.exit_code


def _anybodys(options: VerifyOptions, started: float) -> int:
    """The laws of somebody's training step, or of noise that processes have written down."""
    for name in ("target", "plant", "states", "histories", "cases"):
        given = getattr(options, name)
        require(not given, name, "be left out with update and identity", given)
    require(options.update is None or options.identity is None, "identity", "be left out with update", options.update)
    require_writable("junit", options.junit)

    def tell(outcome: Outcome) -> None:
        if not options.as_json:
            print(outcome, flush=True)

    try:
        if options.update is not None:
            from decomfl_lab.devices import find_device
            from decomfl_lab.laws.steps.update import verify_update

            target = named("update", options.update)
            module = None if options.module is None else named("module", options.module)
            device = str(find_device(options.device or "cpu"))
            with telling(lambda: "interrupted; nothing was kept"):
                outcomes = verify_update(
                    target,
                    module=module,
                    tolerance=options.tolerance,
                    device=device,
                    laws=options.law,
                    on_outcome=tell,
                )
            return _ends(options.update, outcomes, options, "", started)
        from decomfl_lab.laws.steps.identity import read_identities

        assert options.identity is not None
        require(options.identity.is_file(), "identity", "be a file of JSON lines", str(options.identity))
        outcomes = read_identities(options.identity, shared=options.shared, laws=options.law)
    except UnicodeDecodeError:
        raise InputError(f"identity must be a file of JSON lines, got {str(options.identity)!r}") from None
    except ValueError as error:
        raise InputError(str(error)) from error
    for outcome in outcomes:
        tell(outcome)
    return _ends(str(options.identity), outcomes, options, "", started)


def _tell_planted(
    theirs: Implementation | None, table: dict[str, dict[str, Outcome]], options: VerifyOptions, started: float
) -> int:
    """What each law said of each fault; 1 if the law that is meant to catch one does not."""
    from decomfl_lab.laws.faults.federation import AROUND, FAULTS, NOT_SHOWN, around

    faults: Mapping[str, Any] = FAULTS if theirs is None else AROUND
    left = {name: f"as {reason}" for name, reason in NOT_SHOWN.items() if name.partition(", ")[0] in table}
    if theirs is not None:
        left = {name: f"where {reason}" for name, reason in around(theirs)[1].items()}
    meant = {name: faults[name.partition(", ")[0]].caught_by for name in table}  # "fault, behind what"
    missed = [fault for fault, row in table.items() if row[meant[fault]].status != "broken"]
    if options.as_json:
        rows = []
        for fault, row in table.items():
            for law, outcome in row.items():
                rows.append({"fault": fault, "law": law, "status": outcome.status, "meant": law == meant[fault]})
        print_json(rows)
        return int(bool(missed))
    # A row a fault, a column a law; [ ] around the law that is meant to catch the fault.
    laws = list(dict.fromkeys(law for row in table.values() for law in row))
    width = max(map(len, table), default=0)
    lines = [f"{n:3d}  {law}" for n, law in enumerate(laws, 1)]
    lines += ["", " " * width + "".join(f"{n:3d}" for n in range(1, len(laws) + 1))]
    for fault, row in table.items():
        marks = [(_MARKS[row[law].status] if law in row else " ", law == meant[fault]) for law in laws]
        lines.append(fault.ljust(width) + "".join(f"[{mark}]" if aim else f" {mark} " for mark, aim in marks))
    lines += ["", "x broken, ! broken by a crash, . holds, blank: the fault is in no part that the law is about,"]
    print("\n".join([*lines, "[ ] the law that is meant to catch the fault"]))
    caught = f"{len(table) - len(missed)} of {len(table)} faults are caught by the law that is meant to"
    print(f"{caught} (seed {options.seed}, {time.monotonic() - started:.0f} s)")
    for fault, reason in left.items():
        print(f"not tried: {fault}, {reason}")
    if missed:
        print(f"missed with so few cases: {', '.join(missed)}; more --cases may show them")
    return int(bool(missed))


def _search(implementation: Implementation, as_json: bool) -> int:
    """A line for each scope; 1 if a history ends wrongly in one of them, 3 if none could be searched."""
    from decomfl_lab.laws.worlds.breadth_first_search import SCOPES, explore

    explored: list[Explored] = []
    with telling(lambda: f"interrupted; {len(explored)} of {len(SCOPES)} searches were finished"):
        for scope in SCOPES:
            try:
                explored.append(explore(scope, implementation))
                line = str(explored[-1])
            except NotImplementedError as error:
                line = f"skip   {scope} {str(error) or _LACKS}"
            if not as_json:
                print(line, flush=True)
    if as_json:
        print_json([dataclasses.asdict(scope) for scope in explored])
    else:
        count = sum(scope.states for scope in explored)
        seconds = sum(scope.seconds for scope in explored)
        print(f"{implementation.name}: {count:,} states ({seconds:.0f} s of processor time)")
    return int(any(scope.broken for scope in explored)) if explored else 3


def _simulate(implementation: Implementation | None, options: VerifyOptions) -> int:
    """How many histories were played, or the one that is wrong; 1 then, 3 if there are none of the implementation."""
    from decomfl_lab.laws.worlds.random_search import Search

    began, count = time.process_time(), options.histories or 0
    try:
        search = Search(implementation)
    except NotImplementedError as error:
        print(f"skip   {error}")
        return 3
    with telling(lambda: "interrupted; nothing was kept"):
        history = search.search(range(options.seed, options.seed + count))
    seconds = time.process_time() - began
    if options.as_json:
        broken = None if history is None else dataclasses.asdict(history)
        print_json({"histories": count, "seconds": seconds, "found": broken})
    elif history is not None:
        print(history)
    else:
        rate = f"{seconds:.0f} s of processor time, {60 * count / seconds:,.0f} a minute"
        print(f"ok     {count:,} histories from seed {options.seed} ({rate})")
    return int(history is not None)
