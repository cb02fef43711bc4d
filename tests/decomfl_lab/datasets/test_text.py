"""Text and its model: what comes in is the text, what comes out looks only backwards."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab import InputError, TrainConfig
from decomfl_lab.datasets import images as data
from decomfl_lab.datasets.images import documentation, load_dataset, next_bytes
from decomfl_lab.models.registry import build_model, num_parameters
from decomfl_lab.runs.run import Run


def test_sequences_are_the_text_and_targets_the_bytes_that_follow() -> None:
    text = b"to be, or not to be: that is the question"
    inputs, targets, vocabulary = next_bytes(text, 8)
    assert list(vocabulary) == sorted(set(text))
    assert bytes(vocabulary[i] for i in inputs.flatten()) == text[:40]
    assert bytes(vocabulary[i] for i in targets.flatten()) == text[1:41]
    assert inputs.shape == targets.shape == (5, 8)
    with pytest.raises(InputError, match="text must be longer than 8 bytes, got 8"):
        next_bytes(b"to be, o", 8)


def test_without_a_folder_the_text_is_pythons_own_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECOMFL_DATA", raising=False)
    dataset = load_dataset("text")
    assert "embedded: the language reference that ships with Python 3" in dataset.source
    text, _ = documentation()
    assert len(text) > 300_000
    assert dataset.classes == len(set(text))
    assert dataset.train_images.shape[1:] == dataset.train_labels.shape[1:] == (128,)
    assert torch.equal(dataset.train_images[:, 1:], dataset.train_labels[:, :-1])
    assert len(dataset.test_images) == pytest.approx(len(dataset.train_images) / 9, rel=0.01)


def test_a_corpus_must_be_the_one_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECOMFL_DATA", str(tmp_path))
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


def test_a_federation_trains_it_with_scalars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECOMFL_DATA", raising=False)
    config = TrainConfig(
        data="text", model="gpt-tiny", clients=2, sampled=2, rounds=2, perturbations=2, batch_size=2, test_examples=4
    )
    rows = Run(config).train()
    assert rows.test_loss.iloc[-1] == pytest.approx(4.67, abs=0.2)  # ln 107, and next to no training
    assert rows.wire_scalars.iloc[-1] < 100
