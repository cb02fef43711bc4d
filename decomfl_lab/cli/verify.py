"""``decomfl verify``: put an implementation of seed/revert logic to the laws."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from decomfl_lab.interrupts import telling
from decomfl_lab.laws.check import Verdict, load_implementation
from decomfl_lab.laws.check import verify as run
from decomfl_lab.laws.faults import FAULTS

__all__ = ["verify"]


def verify(
    *,
    target: Annotated[
        str | None,
        typer.Option(help="module:function of your own Implementation (decomfl_lab.laws.contract says what it is)."),
    ] = None,
    plant: Annotated[
        str | None, typer.Option(help=f"Plant a fault in the lab's own and see the laws catch it: {', '.join(FAULTS)}.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Put every second client on this device (cpu, cuda or auto; on the CPU: on another backend), the rest "
            "on the CPU."
        ),
    ] = None,
    law: Annotated[list[str] | None, typer.Option(help="Try only this law (may be given several times).")] = None,
    cases: Annotated[int, typer.Option(help="How many random cases each law is tried with.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the random cases.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print rows of law, cases, passed as JSON.")] = False,
) -> None:
    """Check that every rebuilt client model equals the server's bit for bit, law by law.

    Exit code 0 if all laws hold, 1 if one is broken; a broken law prints its smallest counter-example.
    """
    implementation = load_implementation(target, plant, device)

    def announce(name: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{name} ...", end="", file=sys.stderr, flush=True)

    def clear() -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def interrupted() -> str:
        clear()
        held = [verdict.law for verdict in verdicts if verdict.passed]
        names = f": {', '.join(held)}" if held else ""
        return f"interrupted; {len(held)} of the {len(verdicts)} laws tried so far held{names}"

    started = time.monotonic()
    verdicts: list[Verdict] = []
    with telling(interrupted):
        for verdict in run(implementation, cases=cases, seed=seed, laws=tuple(law or ()), on_law=announce):
            verdicts.append(verdict)
            clear()
            if not as_json:
                mark = "ok    " if verdict.passed else "BROKEN"
                print(f"{mark} {verdict.cases:5d} cases  {verdict.law}: {verdict.says}", flush=True)
                if not verdict.passed:
                    print(f"       {verdict.counterexample}", flush=True)
    broken = [verdict.law for verdict in verdicts if not verdict.passed]
    if as_json:
        rows = [
            {
                "law": v.law,
                "says": v.says,
                "cases": v.cases,
                "passed": v.passed,
                "counterexample": v.counterexample,
            }
            for v in verdicts
        ]
        print(json.dumps(rows, ensure_ascii=False))
    else:
        what = f"{implementation.name}: {len(verdicts) - len(broken)} of {len(verdicts)} laws hold"
        print(f"{what} (seed {seed}, {time.monotonic() - started:.0f} s)")
    if broken:
        raise typer.Exit(1)
