"""What has to be the same on any machine, as digests by name; a program that prints them, for other processors.

    python -m tests.anywhere.facts [FOLDER]     with the models of all logs (run.dcl) below FOLDER, where torch is there

Facts whose name begins with "control" are of operations that libraries do in an order of their own. They are promised
nothing, and show that a change of the processor's instructions took effect.
"""

import hashlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from decomfl_lab import noise
from decomfl_lab.datasets.splits import SPLITS, fit, split
from decomfl_lab.models import MODEL_NAMES
from decomfl_lab.noise import draws
from decomfl_lab.noise.draws import draws_of
from decomfl_lab.noise.known_answers import KNOWN_ANSWERS, POSITIONS, START_ANSWERS
from decomfl_lab.noise.starts import Start
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.server import sample_clients

CONTROL = "control"
D = 5000


def digest(arrays: Iterable[np.ndarray]) -> str:
    h = hashlib.blake2b(digest_size=8)
    for array in arrays:
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def hexed(x: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{bits:08x}" for bits in x.view(np.uint32)[list(POSITIONS)])


def of_numpy() -> dict[str, str]:
    """What numpy alone computes."""
    facts: dict[str, str] = {}
    for backend in set(noise.available_backends()) - {"triton"}:
        for known in KNOWN_ANSWERS:
            kind = known.distribution
            z = noise.direction(known.key, known.p, known.d, distribution=kind, backend=backend)
            assert hexed(z) == known.bits, (backend, known)
        for kind in noise.Distribution:
            x = np.linspace(-1, 1, D, dtype=np.float32)
            noise.axpy(x, 7, [0.1, -0.3, 1e-3], d=D, distribution=kind, backend=backend)
            assert facts.setdefault(f"an update along {kind} directions", digest([x])) == digest([x]), backend
            vectors = np.linspace(-1, 1, 2 * D).astype(np.float32).reshape(2, D)
            sums = noise.project(vectors, [(7, 0), (7, 1)], distribution=kind, backend=backend)
            assert facts.setdefault(f"sums along {kind} directions", digest([sums])) == digest([sums]), backend
    for answer in START_ANSWERS:
        assert (
            hexed(Start(answer.draw, answer.scale, answer.cut).elements(answer.key, answer.tensor, 200)) == answer.bits
        )
    labels = np.arange(1000) % 7
    for name in SPLITS:
        facts[f"split {name}"] = digest(split(name, labels, 9, 3, alpha=0.3))
    drawn = draws_of("stream", 1)
    shares = drawn.dirichlet(np.array([0.05, 0.5, 1.0, 3.0]), 50)
    facts["shares of Dirichlet"] = digest([shares])
    facts["a table fitted to shares"] = digest([fit(shares, np.full(50, 20), np.full(4, 250), drawn.dot)])
    facts["who is sampled, by numpy's generator"] = digest(
        [np.array(sample_clients(0, r, 1000, 10)) for r in range(20)]
    )
    facts["order of an epoch"] = digest([draws_of("stream", 0, 3, 5, 1).permutation(600)])
    matrix = np.sin(np.arange(40_000.0)).reshape(200, 200)
    facts[f"{CONTROL}: a product of matrices in numpy"] = digest([matrix @ matrix])
    return facts


def of_torch() -> dict[str, str]:
    """x_0 of all built-in models."""
    import torch

    from decomfl_lab.models.registry import build_model

    facts = {}
    for name in MODEL_NAMES:
        in_shape, classes = ((16,), 30) if name.startswith("gpt") else ((1, 28, 28), 10)
        module = build_model(name, seed=3, in_shape=in_shape, classes=classes)
        facts[f"x_0 of {name}"] = digest(p.detach().numpy() for p in module.parameters())
    torch.manual_seed(0)
    facts[f"{CONTROL}: normal numbers in torch"] = digest([torch.randn(1000).numpy()])
    return facts


def of_logs(folder: Path) -> dict[str, str]:
    """The model that each log below a folder gives."""
    from decomfl_lab.runs.replay import replay

    facts = {}
    for path in sorted(folder.rglob("run.dcl")):
        found = replay(path)
        assert found.agrees, (path, str(found))
        facts[f"replay of {path.parent.name}"] = found.digest
    return facts


def of_logs_without_torch(folder: Path) -> dict[str, str]:
    """The chain of each log, and x_0 as it says it, in numpy."""
    facts = {}
    for path in sorted(folder.rglob("run.dcl")):
        with RunLog.open(path, write=False) as log:
            assert len(list(log.entries())) == len(log) > 0
            start, d = log.header["start"], log.header["d"]
            sizes = [int(np.prod(tensor["shape"])) for tensor in start["tensors"]]
            starts = [Start(own["draw"], own["scale"], own.get("cut")) for own in start["tensors"]]
            key = int(start["key"], 16)
            parts = [each.elements(key, t, n) for t, (each, n) in enumerate(zip(starts, sizes, strict=True))]
            assert sum(sizes) == d
            facts[f"x_0 and chain of {path.parent.name}"] = digest(parts) + log.chain.hex()
    return facts


def facts(folder: Path | None) -> dict[str, str]:
    found = of_numpy()
    if folder is not None:
        found |= of_logs_without_torch(folder)
    if importlib.util.find_spec("torch"):
        found |= of_torch()
        if folder is not None:
            found |= of_logs(folder)
    return found


PLANT = "DECOMFL_PLANTED"
"""Where this is set, tables are fitted by the library of linear algebra, to see it noticed."""

if __name__ == "__main__":
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if os.environ.get(PLANT):
        draws._OfStream.dot = draws.Draws.dot  # type: ignore[method-assign]
    print(json.dumps({"machine": platform.machine(), "numpy": np.__version__, "facts": facts(given)}))
