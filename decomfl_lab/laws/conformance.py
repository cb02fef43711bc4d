"""Test vectors for whoever follows runs without this library: JSON files, and small logs with what must come of them.

All of it is made from seeds, and the scalars of the logs are drawn, not measured, so it is the same on every machine.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from decomfl_lab.errors import InputError, require
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.hiso import Whitened
from decomfl_lab.methods.shared_options import REPLICA_RULE
from decomfl_lab.models.initialisers import starts_of
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import STREAM_VERSION, Distribution, Format, derive_seed
from decomfl_lab.noise.known_answers import START_ANSWERS, hex_words, stream_vectors
from decomfl_lab.noise.reference import directions
from decomfl_lab.noise.starts import Start
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import Seeding, draw_seeds, keyed, stream_of
from decomfl_lab.replicas.registry import make_replica
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, Step, UpdateRule
from decomfl_lab.replicas.start import made_again
from decomfl_lab.runs.configuration import config_from_mapping
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.outside import StreamStart, read_as
from decomfl_lab.storage.tables import table_beside, text_beside

_SEED = 0xFEEDFACECAFEBEEF
"""The seed of all runs: a number that a double cannot hold."""
_RULES: dict[str, UpdateRule] = {
    "sgd": Sgd(),
    "sgd with weight decay": Sgd(0.01),
    "momentum": Momentum(0.9, "torch", 1e-5),
    "momentum of the paper": Momentum(0.5, "paper"),
    "sign": SignSgd(0.01),
    "adamm": AdaMM(weight_decay=0.01),
    "hiso": Whitened(),
    "grid": GridSgd(-20),
    "bfloat16, stochastic": LowPrecision(Momentum(0.9), Format.BFLOAT16),
    "bfloat16, compensated": LowPrecision(Momentum(0.9), Format.BFLOAT16, "compensated"),
    "float16, stochastic": LowPrecision(Sgd(), Format.FLOAT16),
    "float16, nearest": LowPrecision(Sgd(), Format.FLOAT16, "nearest"),
}
_D, _P, _ETA = 150, 5, 0.01


_WRITTEN = table_beside(__name__, "conformance.toml")
_TENSORS = tuple((tuple(shape), Start(*start)) for shape, *start in _WRITTEN["tensors"])


@dataclass(frozen=True)
class _Small:
    """A small run that is to be made up."""

    about: str  # what is particular about it
    seeding: Seeding = Seeding.PER_STEP  # how its records carry seeds
    K: int = 2  # local steps
    P: int = 3  # directions of a step
    config: Mapping[str, Any] = field(default_factory=dict)  # what its configuration says beside the defaults
    signs: bool = False  # whether scalars are signs
    named: bool = False  # whether its model is one of the lab's, so that ``decomfl replay`` rebuilds it too


_RUNS = {
    name: _Small(**{**own, "seeding": Seeding(own.get("seeding", Seeding.PER_STEP))})
    for name, own in _WRITTEN["runs"].items()
}
_ROUNDS = 8


def write_conformance(folder: Path) -> None:
    """Write all vectors and logs, and a README that says what they are.

    InputError if the folder is there with something in it, or cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        raise InputError(f"conformance must be a folder that can be written, got {folder} ({error.strerror})") from None
    require(empty, "conformance", "be a new or an empty folder", str(folder))
    # Tensors of x_0, whole.
    starts: list[dict[str, Any]] = []
    for answer in START_ANSWERS:
        start, count = Start(answer.draw, answer.scale, answer.cut), 200
        place = {"key": f"{answer.key:016x}", "tensor": answer.tensor, "elements": count}
        starts.append({**start.to_dict(), **place, "bits": hex_words(start.elements(answer.key, answer.tensor, count))})
    # Checksums and hashes of short messages, and seeds below seeds.
    messages = [bytes(range(n)) for n in (0, 1, 9, 64, 127, 128, 129, 256)] + [b"decomfl" * 100]
    paths = [(0,), (11,), (2**64 - 1,), (0, 0), (3, 5), (1, 2, 3)]
    checks = {
        "crc32": [{"message": m.hex(), "check": f"{zlib.crc32(m):08x}"} for m in messages],
        "blake2b_128": [{"message": m.hex(), "hash": hashlib.blake2b(m, digest_size=16).hexdigest()} for m in messages],
        "seeds": [
            {"seed": f"{seed:016x}", "path": [f"{n:016x}" for n in path], "below": f"{derive_seed(seed, *path):016x}"}
            for seed in (0, _SEED)
            for path in paths
        ],
    }
    # Two steps of each rule, the second the last of its round, from x and vectors at their beginning.
    rules: list[dict[str, Any]] = []
    for named, rule in _RULES.items():
        x = torch.from_numpy(Start("uniform", 0.1).elements(_SEED, 0, _D))
        replica, steps = make_replica(rule.begin(x), rule), []
        before = _vectors(replica)
        for n in range(2):
            seed, scalars = derive_seed(_SEED, n), _scalars(n, 1, _P)[0]
            replica.step_(Step(seed, scalars, _ETA, Distribution.GAUSSIAN, last=n == 1))
            given_step = {"seed": f"{seed:016x}", "scalars": hex_words(scalars), "last": n == 1}
            steps.append({**given_step, "after": _vectors(replica)})
        values = {"method": "hiso", "nu": rule.nu} if isinstance(rule, Whitened) else REPLICA_RULE.split(rule)
        about = {"name": named, "config": values, "eta": hex_words(np.float64(_ETA)), "distribution": "gaussian"}
        rules.append({**about, "before": before, "steps": steps, "digest": replica.digest()})
    tables = {"stream": stream_vectors(), "starts": starts, "checks": checks, "rules": rules}
    for name, small in _RUNS.items():
        content, tables[name] = _log(name, small)
        write_atomically(folder / f"{name}.dcl", content)
    for name, table in tables.items():
        write_atomically(folder / f"{name}.json", json.dumps(table, indent=1) + "\n")
    runs = "\n".join(f"| `{name}.dcl` | {small.about} |" for name, small in _RUNS.items())
    write_atomically(folder / "README.md", text_beside(__name__, "conformance.md").replace("RUNS", runs))


def _vectors(replica: Replica) -> dict[str, str]:
    """The bits of x and of the optimizer's vectors, in the order of the digest."""
    kinds = {2: torch.int16, 4: torch.int32}
    named = {"x": replica.x, **{slot: replica.state[slot] for slot in replica.rule.slots}}
    return {name: hex_words(vector.view(kinds[vector.itemsize]).numpy()) for name, vector in named.items()}


def _scalars(r: int, K: int, P: int) -> ScalarArray:
    """Scalars of a round, drawn."""
    return directions(_SEED, r, 0, K * P, Distribution.GAUSSIAN, 1.0).reshape(K, P)


def _log(name: str, small: _Small) -> tuple[bytes, dict[str, Any]]:
    """The log of a made-up run, and what is in it."""
    values: dict[str, Any] = {
        "data": "digits",
        "model": "logistic" if small.named else "own",
        "seed": _SEED,
        "rounds": _ROUNDS,
    }
    values |= {"draws": "stream", "seeds": small.seeding.value, "local_steps": small.K, "perturbations": small.P}
    values |= {"lr": _ETA, "lr_schedule": {str(r): _ETA / (1 + r) for r in range(1, _ROUNDS)}}
    config = config_from_mapping({**values, **small.config}, name, lenient=True)
    method = config.method
    assert isinstance(method, DeComFL)
    model = build_model("logistic", seed=_SEED, in_shape=(1, 8, 8), classes=10)
    tensors = tuple((tuple(p.shape), start) for p, start in zip(model.parameters(), starts_of(model), strict=True))
    tensors = tensors if small.named else _TENSORS
    listed = [{"shape": list(shape), **start.to_dict()} for shape, start in tensors]
    header: dict[str, Any] = {
        "config": config.to_dict(),
        "data": "0" * 16,
        "source": "no data: the scalars are drawn",
        "shape": [1, 8, 8],
        "dtype": "float32",
        "classes": 10,
        "d": sum(int(np.prod(shape)) for shape, _ in tensors),
        "run_seed": derive_seed(_SEED, 2),
        "stream": STREAM_VERSION,
        "code": "conformance",
        "start": {"by": "stream", "key": f"{_SEED:016x}", "tensors": listed},
    }
    x = made_again(read_as(StreamStart, header["start"], "start"), b"", header["d"])
    assert x is not None
    key = derive_seed(_SEED, 11) if getattr(method, "private_seeds", False) else None
    replica = make_replica(method.start(x), method.rule, private_key=key)
    header["x0"] = replica.digest()
    beginning, rounds = _vectors(replica), []
    with TemporaryDirectory() as folder, RunLog.create(Path(folder) / "run.dcl", header) as log:
        for r in range(_ROUNDS):
            # The entry of round r, whose record the replica has applied; optional fields come and go.
            seeds = draw_seeds(small.seeding, header["run_seed"], r, small.K, small.P, S=100)
            g = _scalars(r, small.K, small.P)
            scalars = np.where(g > 0, 1, -1).astype(np.int8) if small.signs else g
            record = RoundRecord(r, _ETA / (1 + r), Distribution(method.distribution), seeds, scalars)
            replica.apply(record)
            digest = replica.digest() if r % 3 == 1 or r == _ROUNDS - 1 else None
            held = (r, r, 0) if r % 2 else None
            entry = LogEntry(record, (0, 2, 5), (2, 5), held=held, digest=digest, examples=(7, 9) if r % 3 else None)
            log.append(entry)
            # What the log says of the round.
            step_seeds = [keyed(seed, key) for seed in record.seeds]
            streams = [[stream_of(seed, p) for p in range(record.P)] for seed in step_seeds]
            rounds.append({
                "round": record.round,
                "eta": hex_words(np.float64(record.eta)),
                "K": record.K,
                "P": record.P,
                "distribution": record.distribution.value,
                "seeding": record.seeding.value,
                "streams": [[f"{stream:016x} {q}" for stream, q in of_step] for of_step in streams],
                "scalars": hex_words(record.scalars.astype(np.float32)),
                **{name: getattr(entry, name) for name in ("sampled", "answered", "held", "examples", "digest")},
                "chain": log.chain.hex(),
            })  # fmt: skip
        content = Path(log.name).read_bytes()
    return content, {
        "about": small.about,
        "bytes": len(content),
        "header": json.dumps(header, sort_keys=True),
        "before": beginning,
        "rounds": rounds,
        "after": _vectors(replica),
        "digest": replica.digest(),
    }
