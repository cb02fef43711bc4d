"""Does a device give the bits of the CPU? Directions, points, projections, and replays of recorded runs.

Everything that must be exact is made on the device and on the CPU and compared to the bit. On the CPU itself the two
sides are the fast backend and the reference one, so that the checks, and the code that a device runs, can be tried
without one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from decomfl_lab import noise
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.devices import describe, on_host
from decomfl_lab.errors import InputError
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.noise import Distribution
from decomfl_lab.replicas.rebuild import axpy_, form_points_, project
from decomfl_lab.replicas.replica import Replica, same_bits
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Prepared
from decomfl_lab.storage.tables import table_beside

SIZES = (1, 127, 128, 129, 4097, 1_000_003)
"""Elements of a vector: below, at and above a tile of 128, and many of them, odd."""
OFFSETS = (0, 77, 2**32 - 64, 2**33 + 5)
"""Places of its first element."""
RUNS: dict[str, dict[str, Any]] = table_beside(__name__, "devices.toml")
"""What is changed in a short run on the embedded digits, whose records are then replayed."""


@dataclass(frozen=True)
class BitCheck:
    """A comparison of a device's bits with the CPU's."""

    what: str  # words that say what was compared
    cases: int  # how many comparisons
    equal: int  # how many of them were equal to the bit

    @property
    def holds(self) -> bool:
        """Whether all of them were."""
        return self.cases == self.equal


def checks(device: torch.device, *, sizes: Sequence[int] = SIZES, rounds: int = 3) -> Iterator[BitCheck]:
    """Every check, as soon as it is known: of noise vectors of these sizes, and of runs of so many rounds."""
    other = noise.cpu_backend() if device.type == "cuda" else "numpy"
    for kind in Distribution:
        cases = []
        for n, first in product(sizes, OFFSETS):
            # 1.5 z_3 + 0.25 z_4 added to a vector of ones, here and there.
            seed, c = 2**63 + n, [1.5, 0.25]
            d = n + first if kind is not Distribution.SPHERE else 2 * n  # the sphere's norm takes a pass over all of z
            first = first if kind is not Distribution.SPHERE else min(first, n)
            on_device, ones = torch.ones(n, device=device), np.ones(n, dtype=np.float32)
            axpy_(on_device, seed, c, d=d, first=first, first_p=3, distribution=kind)
            noise.axpy(ones, seed, c, d=d, first=first, first_p=3, distribution=kind, backend=other)
            cases.append(same_bits(on_device.cpu(), torch.from_numpy(ones)))
        yield BitCheck(f"directions: {kind}", len(cases), sum(cases))
    for kind in Distribution:
        cases = []
        for n in sizes:
            # x + cz, x − cz of four directions and x itself, all at once, here and there.
            x = torch.linspace(-1, 1, n)
            streams, c = [*_STREAMS, *_STREAMS, _STREAMS[0]], [1e-3] * 4 + [-1e-3] * 4 + [0.0]
            on_device, on_cpu = torch.empty(len(c), n, device=device), torch.empty(len(c), n)
            form_points_(on_device, x.to(device), streams, c, kind)
            form_points_(on_cpu, x, streams, c, kind, backend=other)
            cases.append(same_bits(on_device.cpu(), on_cpu))
        yield BitCheck(f"points x + cz: {kind}", len(cases), sum(cases))
    for kind in Distribution:
        cases = []
        for n in sizes:
            # ⟨v_i, z_p⟩ of three vectors and four directions, here and there.
            vectors = torch.sin(torch.arange(3.0 * n).view(3, n))
            on_device = project(vectors.to(device), _STREAMS, distribution=kind)
            on_cpu = project(vectors, _STREAMS, distribution=kind, backend=other)
            cases.append(on_host(on_device).tobytes() == on_host(on_cpu).tobytes())
        yield BitCheck(f"projections ⟨v, z⟩: {kind}", len(cases), sum(cases))
    for name, changes in RUNS.items():
        cases = list(_replays(device, other, changes, rounds))
        yield BitCheck(f"replay of a run: {name}", len(cases), sum(cases))


def require_bits(device: torch.device) -> None:
    """Raise InputError, naming the first check that fails, unless the device gives the bits of the CPU."""
    for check in checks(device):
        if not check.holds:
            raise InputError(f"device must give the bits of the CPU, but {check.what} differs on {describe(device)}")


_STREAMS = [(2**64 - 3, p) for p in (0, 31, 32, 7)]


def _replays(device: torch.device, other: str, changes: dict[str, Any], rounds: int) -> Iterator[bool]:
    """Records of a run on the CPU, applied on the device all at once and one by one; and the same the other way."""
    settings: dict[str, Any] = {"data": "digits", "model": "mlp", "clients": 4, "sampled": 2, "batch_size": 32}
    config = TrainConfig(**settings | {"perturbations": 5, "seed": 1} | changes)
    dataset = load_dataset(config.data)
    places = [(torch.device("cpu"), device, None if device.type == "cuda" else other)]
    places += [(device, torch.device("cpu"), None)] if device.type == "cuda" else []
    for trained, rebuilt, backend in places:
        federation = Prepared.of(config, dataset.to(trained)).federation()
        assert isinstance(federation, DeComFLFederation)
        start = federation.observer.clone()
        for _ in range(rounds):
            federation.advance()
        records = federation.server.history.since(0)
        for groups in ([records], [[record] for record in records]):
            replica = Replica(start.x.to(rebuilt), start.rule, backend=backend, private_key=start.private_key)
            for group in groups:
                replica.catch_up(group)
            yield replica.digest() == federation.observer.digest()
