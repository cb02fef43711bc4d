"""``make fuzz``: atheris changes messages and checkpoints, guided by the lines that they reach, and judges each."""

import argparse
import random
import resource
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["decomfl_lab.protocol", "decomfl_lab.storage.checkpoint_file"]):
    from tests.fuzz import judge

SAY_EVERY, MEASURE_EVERY, USE_EVERY = 2**16, 256, 16
ROOM = 2**31
"""The address space that this process may take beside what it has: a decoder that asks for more gets a MemoryError."""


def mutated(stream: bytes, most: int, seed: int) -> bytes:
    """Another stream: one of its messages changed and mostly mended, or put beside or instead of a sample."""
    chance = random.Random(seed)
    messages = [stream] if stream[:2] != b"DC" else list(judge.split(stream))
    if not messages or chance.random() < 0.05:
        return chance.choice(judge.STREAMS)[:most]
    at = chance.randrange(len(messages))
    if chance.random() < 0.05:
        messages.insert(at, chance.choice(judge.SAMPLES))
    if chance.random() < 0.05:
        del messages[at - 1]
    if messages:
        at = chance.randrange(len(messages))
        changed = atheris.Mutate(messages[at], most)
        mend, counts = chance.random() < 0.95, chance.random() < 0.5
        messages[at] = judge.mended(changed, counts=counts) if mend else changed
    return b"".join(messages)[:most]


class LineWatch:
    """Puts every input to the decoders, some to client and server, too, measures the memory of a few, and counts."""

    def __init__(self) -> None:
        self.inputs = self.accepted = 0
        self.began = time.monotonic()

    def __call__(self, stream: bytes) -> None:
        """Judge one input; what this raises is a finding, which libFuzzer saves."""
        self.inputs += 1
        if self.inputs % MEASURE_EVERY:
            self.accepted += judge.judge(stream, decoders_alone=bool(self.inputs % USE_EVERY)) > 0
        else:
            judge.judge_with_memory(stream)
        if self.inputs % SAY_EVERY == 0:
            print(self, flush=True)

    def __str__(self) -> str:
        rate = self.inputs / (time.monotonic() - self.began)
        return f"{self.inputs:,} inputs, {rate:,.0f} a second, {self.accepted:,} of them read as a message or more"


def main() -> None:
    """Parse, fuzz; libFuzzer ends the process, with 0 after all runs and with 1 at a finding."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=10**7, help="The number of inputs.")
    parser.add_argument("--seed", type=int, default=1, help="The seed of the changes.")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="The folder of inputs that are findings.")
    chosen = parser.parse_args()
    corpus = chosen.out / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for n, stream in enumerate(judge.STREAMS):
        judge.judge(stream)
        (corpus / f"sample-{n}").write_bytes(stream)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, -1))
    options = {"runs": chosen.runs, "seed": chosen.seed, "max_len": 256, "timeout": 10, "rss_limit_mb": 4096}
    options |= {"error_exitcode": 1, "timeout_exitcode": 1, "artifact_prefix": f"{chosen.out}/finding-"}
    options |= {"reload": 0, "verbosity": 0}
    watch = LineWatch()
    atheris.Setup(
        [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(corpus)],
        watch,
        custom_mutator=mutated,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
