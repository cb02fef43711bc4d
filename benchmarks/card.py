"""``make device``: what a machine with a GPU can say of this lab, in a fixed order and at most eight minutes.

Bits come first, then what has a digest, then ratios, then κ of large models. Every part is a command in a process of
its own, and its row, with what it printed and where it ran, is on the disk as soon as it ends. A part that fails or is
not done in time has a row, too, and the next one begins.

    python -m benchmarks.card --out device.json
    python -m benchmarks.card --out device.json --device cpu     the same at small sizes, to try the script
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mould import provenance
from benchmarks.ways.clock import apart
from decomfl_lab.devices import describe, find_device
from decomfl_lab.errors import InputError, require, require_finite_positive
from decomfl_lab.laws.devices import checks
from decomfl_lab.storage.files import require_writable, write_atomically
from decomfl_lab.storage.tables import table_beside

_LOG = Path(__file__).parents[1] / "docs" / "_static" / "rebuild" / "mnist.dcl"
_HERE = "benchmarks.card"  # also where it is run by itself
PARTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    kind: {part: [word.format(log=_LOG) for word in words.split()] for part, words in own.items()}
    for kind, own in table_beside(_HERE, "card.toml").items()
}
"""The command of every part, which is also given the device, by the kind of device."""
_WIDTH = 11_180  # of the layers of ``billion``


def smollm2() -> nn.Module:
    """A model of SmolLM2-135M's form with random weights: its κ is not that of the trained model, its cost is."""
    from benchmarks.ways.language import SMOLLM2, answering

    return answering(SMOLLM2, 0)


def prompts() -> tuple[Tensor, Tensor]:
    """Prompts of random tokens for it, (32, T) int64, and classes, (32,)."""
    from benchmarks.ways.language import random_prompts
    from decomfl_lab.language.opt import SPECIAL

    return random_prompts(32, vocabulary=49_152, pad=SPECIAL.index("<pad>"), seed=1)


def billion() -> nn.Module:
    """Eight layers of 11,180 × 11,180 weights, random, GELU between them: d = 999,939,200."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [(nn.Linear(_WIDTH, _WIDTH, bias=False), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*[part for layer in layers for part in layer][:-1])


def inputs() -> tuple[Tensor, Tensor]:
    """32 examples for it, (32, 11,180) float32, and classes, (32,)."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, _WIDTH, generator=generator), torch.randint(_WIDTH, (32,), generator=generator)


def measured(parts: Mapping[str, Sequence[str]], device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """The row of every part, as soon as it ends: the part, its command, and what a ``ProcessOutcome`` has.

    ``parts`` are their commands, which are given the device; ``seconds`` is how long all may take together.
    """
    ends = time.monotonic() + seconds
    for part, words in parts.items():
        arguments = [*words, "--device", device]
        outcome = apart(arguments, seconds=max(ends - time.monotonic(), 0.0))
        yield {"part": part, "command": " ".join(arguments), **asdict(outcome), "seconds": round(outcome.seconds, 1)}


def main(arguments: Sequence[str] | None = None, parts: Mapping[str, Mapping[str, Sequence[str]]] = PARTS) -> int:
    """Run all parts; 1 if one of them failed, or was not done in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="cuda, cuda:N, auto or cpu")
    parser.add_argument("--out", type=Path, default=Path("device.json"), help="the file of the rows")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long all parts may take together")
    parser.add_argument("--bits", action="store_true", help="print the comparison of bits alone, as JSON")
    asked = parser.parse_args(arguments)
    try:
        place = find_device(asked.device)
        if asked.bits:
            compared = [asdict(check) | {"holds": check.holds} for check in checks(place)]
            print(json.dumps(compared))
            return int(not all(each["holds"] for each in compared))
        rule = "be a GPU, which this machine lacks; cpu tries the script at small sizes"
        require(place.type != "cpu" or asked.device == "cpu", "device", rule, asked.device)
        require_finite_positive("minutes", asked.minutes)
        require_writable("out", asked.out)
    except InputError as error:
        parser.error(str(error))
    rows: list[dict[str, Any]] = []
    where = {"device": describe(place), **provenance()}
    for row in measured(parts[place.type], asked.device, 60 * asked.minutes):
        rows.append(row)
        write_atomically(asked.out, json.dumps({**where, "parts": rows}, indent=1, ensure_ascii=False))
        end = "done" if row["exit"] == 0 else f"FAILED: {row['said']}"
        print(f"{row['part']:24} {row['seconds']:6.1f} s  {end}", flush=True)
    return int(any(row["exit"] != 0 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
