"""The family of OPT models: sizes, vocabularies, and pretraining that repeats and resumes to the bit."""

import gzip
import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.language import corpus
from decomfl_lab.language import pretraining as family
from decomfl_lab.language.corpus import Corpus, Verdicts, load_corpus, train_vocabulary
from decomfl_lab.language.opt import SIZES, SPECIAL, Size, build_opt
from decomfl_lab.language.pretraining import PretrainConfig, pretrain
from decomfl_lab.models.registry import num_parameters
from decomfl_lab.progress import Progress
from tests.cases import refuses, rows_of

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

TINY = Size(16, 1, 2, 16)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size and a text that take no time."""
    monkeypatch.setitem(SIZES, "tiny", TINY)
    text = "".join(f"line {n}: it was a good film, and {n * n} people liked it .\n" for n in range(400))
    small = Corpus((text,), (text[:1500],), "four hundred lines", "0123")
    monkeypatch.setattr(family, "load_corpus", lambda: small)


def _run(**changes: Any) -> PretrainConfig:
    return PretrainConfig(**{"size": "tiny", "vocabulary": 300, "steps": 6, "batch": 2, "lr": 0.01, **changes})


def _whole(vocabulary: int) -> Any:
    """A tokenizer of that many tokens, as far as a model of it is concerned."""
    words = {token: n for n, token in enumerate(SPECIAL)} | {f"w{n}": n + 4 for n in range(vocabulary - 4)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))


def _dimension(size: Size, V: int) -> int:
    """What ``Size`` says that d is."""
    h = size.width
    return (V + size.context + 4) * h + size.depth * (12 * h**2 + 13 * h)


@pytest.mark.parametrize("size", [TINY, SIZES["opt-0.3m"], SIZES["opt-1m"], SIZES["opt-4m"]])
def test_d_is_the_formula(size: Size) -> None:
    assert num_parameters(build_opt(size, _whole(321), seed=0)) == _dimension(size, 321)


@pytest.mark.parametrize("name", [name for name in SIZES if name != "tiny"])
def test_names_say_d_at_4096_tokens_and_of_opt_125m_at_its_own(name: str) -> None:
    said = float(name.removeprefix("opt-").removesuffix("m")) * 1e6
    vocabulary = 50_272 if name == "opt-125m" else 4096
    assert _dimension(SIZES[name], vocabulary) == pytest.approx(said, rel=0.07)


def test_weights_come_from_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (build_opt(TINY, _whole(300), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [model.get_input_embeddings().weight for model in (first, again, other)]  # type: ignore[operator]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not any(module.p for model in (first,) for module in model.modules() if isinstance(module, torch.nn.Dropout))


def test_vocabularies_repeat_round_trip_and_begin_texts() -> None:
    first, again = (train_vocabulary(load_corpus(), 600) for _ in range(2))
    assert first.to_str() == again.to_str()
    assert first.get_vocab_size() == 600
    text = "Naïve café — “quoted”,\n\n  it was good 😀"
    ids = first.encode(text).ids
    assert ids[0] == first.token_to_id("</s>") == 2
    assert first.decode(ids) == text
    assert [first.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]


def test_the_embedded_text_says_so_and_holds_every_twentieth_piece_out() -> None:
    text = load_corpus()
    assert text.source.startswith("embedded: the language reference")
    pieces = [*text.train[:19], text.held_out[0], *text.train[19:]]
    assert len(pieces) > 20
    assert all(len(piece) >= corpus.PIECE for piece in pieces[:20])
    assert all(piece.endswith("\n") for piece in pieces[:20])
    assert 0.03 < len("".join(text.held_out)) / len("".join(pieces)) < 0.07
    assert not set(text.train) & set(text.held_out)


def test_text_from_a_folder_is_checked(
    tmp_path: Path, data_in: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    data_in(tmp_path)
    contents = {"a.txt.gz": gzip.compress(b"first\n" * 9, mtime=0), "b.txt": b"second\n" * 9}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    monkeypatch.setattr(corpus, "CORPUS", {name: hashlib.sha256(c).hexdigest() for name, c in contents.items()})
    text = load_corpus()
    assert "".join(text.train) == "first\n" * 9 + "second\n" * 9
    assert text.source.startswith("a, b, from DECOMFL_DATA")
    (folder / "b.txt").write_bytes(b"other")
    with pytest.raises(InputError, match="b.txt must have sha256"):
        load_corpus()


@refuses(*rows_of(__file__)["refused"])
def test_bad_configurations_are_refused(values: dict[str, Any]) -> None:
    _run(**values)


def test_the_same_seed_gives_the_same_bits_and_transformers_reads_them(tmp_path: Path) -> None:
    first, again = (pretrain(_run(), tmp_path / name) for name in "ab")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    losses = [[row["held_out_loss"] for row in facts["evaluations"]] for facts in (first, again)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] < 1.05 * math.log(300)
    assert pretrain(_run(), tmp_path / "a") == first  # known, not done again
    model, found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert num_parameters(model) == first["d"] == _dimension(TINY, 300)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    text = "it was a good film"
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "a" / "tokenizer.json"))
    assert tokenizer(text)["input_ids"] == read.encode(text).ids
    assert (tokenizer.padding_side, tokenizer.pad_token_id) == ("left", 1)
    other = pretrain(_run(seed=1), tmp_path / "c")
    assert other["evaluations"][-1]["held_out_loss"] != losses[0][-1]


def test_an_interrupted_run_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pretrain(_run(), tmp_path / "whole")
    monkeypatch.setattr(family, "CHECKPOINT_SECONDS", 0.0)

    def interrupt(at: Progress) -> None:
        if at.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(_run(), tmp_path / "parts", on_step=interrupt)
    assert not (tmp_path / "parts" / "config.json").exists()
    with pytest.raises(InputError, match="out must be empty or hold the same pretraining run"):
        pretrain(_run(steps=7), tmp_path / "parts")
    steps: list[int] = []
    resumed = pretrain(_run(), tmp_path / "parts", on_step=lambda at: steps.append(at.round))
    assert steps == [5, 6]  # the step under way was saved
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert same[0] == same[1]
    timeless = [[{**row, "seconds": 0} for row in facts["evaluations"]] for facts in (whole, resumed)]
    assert timeless[0] == timeless[1]
    assert not list((tmp_path / "parts").glob("pretraining*"))


GOOD_AND_BAD = tuple((f"{word} {n}", word == "yes") for n in range(40) for word in ("yes", "no"))


@pytest.fixture
def _reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with reviews whose verdict one word tells."""
    small = family.load_corpus()
    monkeypatch.setattr(
        family, "load_corpus", lambda: replace(small, reviews=GOOD_AND_BAD[:60], held_out_reviews=GOOD_AND_BAD[60:])
    )


@pytest.mark.usefixtures("_reviews")
def test_verdicts_are_learnt_in_the_middle_of_the_text(tmp_path: Path) -> None:
    config = _run(steps=4, verdicts=60, vocabulary=600)
    assert [step for step in range(config.total) if config.of_verdicts(step)] == list(range(3, 63))
    rows = pretrain(config, tmp_path / "a")["evaluations"]
    assert (rows[-1]["step"], rows[-1]["verdict_accuracy"]) == (64, 1.0)
    untouched = pretrain(replace(config, lr=1e-9), tmp_path / "b")["evaluations"]
    assert untouched[-1]["verdict_accuracy"] < 0.8


@pytest.mark.usefixtures("_reviews")
def test_the_loss_of_verdicts_is_that_of_the_two_answers() -> None:
    corpus, vocabulary = family.load_corpus(), train_vocabulary(family.load_corpus(), 600)
    model: Any = build_opt(TINY, vocabulary, seed=0)
    found = Verdicts(corpus, vocabulary, model).loss(np.random.default_rng(5))
    expected = []
    for n in np.random.default_rng(5).integers(0, 60, 64):  # one prompt at a time, without padding, all logits
        line, favourable = GOOD_AND_BAD[n]
        ids = torch.tensor([vocabulary.encode(f"{line} The film is").ids[-TINY.context :]])
        logits = model(input_ids=ids).logits[0, -1]
        bad, good = (logits[vocabulary.encode(word).ids[-1]] for word in (" bad", " good"))
        expected.append(torch.log1p(torch.exp(bad - good if favourable else good - bad)))
    assert found.item() == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


def test_the_loss_is_the_models_own_and_divergence_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_opt(TINY, _whole(300), seed=0)
    sequences = torch.randint(4, 300, (3, 17), generator=torch.Generator().manual_seed(0))
    assert isinstance(model, transformers.OPTForCausalLM)
    sequences[:, 0] = 2  # </s>
    theirs = model(input_ids=sequences[:, :-1], labels=sequences, shift_labels=sequences[:, 1:].contiguous()).loss
    assert family.next_token_loss(model, sequences[:, 1:], 2).item() == pytest.approx(theirs.item(), rel=1e-6)
    monkeypatch.setattr(family, "next_token_loss", lambda model, *_: next(model.parameters()).sum() * math.nan)
    with pytest.raises(DivergedError, match="the loss at step 1 must be finite"):
        pretrain(_run(), tmp_path)
