"""A family of OPT models, 0.3 to 50 million parameters, pretrained from scratch on the text available here.

They are `transformers` models like any other, in folders that ``AutoModelForCausalLM`` reads; what they are for is to
be fine-tuned at sizes that one processor core can do.

Source: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022, for architecture and training.
"""

import dataclasses
import json
import math
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import DivergedError, require, require_possible
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.language.corpus import Verdicts, load_corpus, train_vocabulary
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.opt import SIZES, SPECIAL, build_opt
from decomfl_lab.models.registry import num_parameters
from decomfl_lab.options import REQUIRED, option, require_options
from decomfl_lab.progress import Progress
from decomfl_lab.storage.checkpoint_file import CHECKPOINT_SECONDS, read_checkpoint, write_checkpoint
from decomfl_lab.storage.files import held, write_atomically
from decomfl_lab.storage.provenance import PROVENANCE_FILE, code_version

CHECKPOINT_FILE = "pretraining.safetensors"
CONFIG_FILE = "config.json"
EVALUATIONS = 10
EVALUATED_TOKENS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """One pretraining run; the same configuration, text and number of threads give the same bits."""

    size: str = option(REQUIRED, "The size of OPT.", choices=SIZES)
    vocabulary: int = option(
        4096, "The tokens of a byte-level BPE trained on the text.", ge=256 + len(SPECIAL), le=1_000_000
    )
    steps: int = option(1000, "The number of steps of AdamW.", ge=1)
    batch: int = option(8, "The number of sequences of T tokens a step.", ge=1)
    verdicts: int = option(
        0,
        "The number of steps more, after ``TEXT_FIRST`` of the others, in which the model learns to tell film reviews' "
        "sentiment from their lines.",
        ge=0,
    )
    lr: float = option(
        3e-3, "The largest learning rate, after ``WARM_UP`` of all steps; then half a cosine down to a tenth.", gt=0
    )
    seed: int = option(0, "The seed of the initial weights and of the order of the text.", ge=0, le=2**64 - 1)

    def __post_init__(self) -> None:
        require_options(self)
        sizes = self.steps, self.batch
        require_possible("steps and batch", sizes, operations=1e6 * self.steps * self.batch)

    @property
    def tokens(self) -> int:
        """Tokens of text that are predicted in the whole run."""
        return self.steps * self.batch * SIZES[self.size].context

    @property
    def total(self) -> int:
        """Steps of both kinds."""
        return self.verdicts + self.steps

    def of_verdicts(self, step: int) -> bool:
        """Whether step 0, 1, ... is one on the sentiment of reviews."""
        first = math.ceil(TEXT_FIRST * self.steps)
        return first <= step < first + self.verdicts

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear for ``WARM_UP`` of the run, then a cosine to a tenth of ``lr``."""
        warm = max(1, round(WARM_UP * self.total))
        if step < warm:
            return self.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.total - warm)
        return self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


TEXT_FIRST = 0.75
WARM_UP = 0.05
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
"""The settings of AdamW, as OPT was trained: moments, decay of the matrices, largest norm of a gradient."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


def pretrain(
    config: PretrainConfig, out: Path, *, on_step: Callable[[Progress], None] = lambda _: None
) -> dict[str, Any]:
    """Train the model of ``config`` to predict the next token and leave it in the folder ``out``.

        (1 / BT) Σ_b Σ_{t=1..T} −log p(w_t | w_0 … w_{t−1}),    w_0 = </s>,  w_1 … w_T anywhere in the text

    and, in ``config.verdicts`` of the steps, −log p(sentiment | line of a film review) (see ``Verdicts``).

    An interrupted run resumes to the bit; a finished one is not repeated. The folder then holds what
    ``transformers`` reads (config.json, model.safetensors, tokenizer.json, tokenizer_config.json) and provenance.json.

    Returns:
        What provenance.json holds: the configuration, d, the text, versions, and the evaluations: step, train_loss
        (mean since the last evaluation), held_out_loss (nats a token of text), bits_per_byte (comparable across
        vocabularies), seconds, and with ``verdicts`` verdict_accuracy (on lines of held-out reviews).

    Raises:
        InputError: If the folder holds another run or another process writes to it, the text is missing or altered, or
            the extra llm is missing.
        Interrupted: After a signal, once the step under way is saved.
        DivergedError: If the loss is no longer finite.
    """
    saved_step = 0

    def interrupted() -> str:
        where = f"saved in {out} after step {saved_step}" if saved_step else f"nothing was saved in {out} yet"
        return f"interrupted; {where}; the same command goes on"

    with telling(interrupted), held(out), ExitStack() as stack:
        corpus = load_corpus()
        identity = {"config": dataclasses.asdict(config), "data_digest": corpus.digest, "code": code_version()}
        if (out / CONFIG_FILE).exists():
            try:
                earlier: dict[str, Any] = json.loads((out / PROVENANCE_FILE).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                earlier = {}
            return _same(out, earlier, identity)
        tokenizer = train_vocabulary(corpus, config.vocabulary)
        first_token, T = tokenizer.token_to_id("</s>"), SIZES[config.size].context
        model = build_opt(SIZES[config.size], tokenizer, seed=config.seed)
        named = dict(model.named_parameters())
        # Matrices decay, and vectors do not.
        groups = [
            {"params": [p for p in named.values() if (p.ndim > 1) == matrix], "weight_decay": decay}
            for matrix, decay in ((True, WEIGHT_DECAY), (False, 0.0))
        ]
        optimizer = torch.optim.AdamW(groups, betas=BETAS, lr=0.0)
        streams = []  # the ids of the pieces one after another, (N,) int64
        for pieces in (corpus.train, corpus.held_out):
            encodings = tokenizer.encode_batch(list(pieces), add_special_tokens=False)
            ids = np.concatenate([encoding.ids for encoding in encodings]).astype(np.int64)
            streams.append(torch.from_numpy(ids))
        stream, held_out = streams
        verdicts = Verdicts(corpus, tokenizer, model) if config.verdicts else None
        # A token of the held-out text stands for so many bytes.
        token_bytes = sum(len(piece.encode()) for piece in corpus.held_out) / len(held_out)
        state: dict[str, Any] = {"step": 0, "rows": [], "losses": [], "seconds": 0.0, "identity": identity}
        if (out / CHECKPOINT_FILE).exists():
            tensors, saved = read_checkpoint(out / CHECKPOINT_FILE)
            _same(out, saved.get("identity", {}), identity)
            state, saved_step = saved, saved["step"]
            for name, p in named.items():
                p.data.copy_(tensors[f"x.{name}"])
                moments = {key: tensors[f"{key}.{name}"] for key in _MOMENTS}
                optimizer.state[p] = {"step": torch.tensor(float(saved_step)), **moments}
        rows, losses = state["rows"], state["losses"]

        def save() -> None:
            nonlocal saved_step
            tensors = {f"x.{name}": p.detach() for name, p in named.items()}
            for key, (name, p) in product(_MOMENTS, named.items()):
                tensors[f"{key}.{name}"] = optimizer.state[p][key]
            write_checkpoint(out / CHECKPOINT_FILE, tensors, state)
            saved_step = state["step"]

        every = max(1, config.total // EVALUATIONS)
        last_save = time.monotonic()
        came = stack.enter_context(postponed())  # to the end of a step
        for step in range(state["step"], config.total):
            started = time.monotonic()
            rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(step,)))
            if verdicts is not None and config.of_verdicts(step):
                objective = verdicts.loss(rng)
            else:  # sequences of T tokens that begin anywhere
                starts = torch.from_numpy(rng.integers(0, len(stream) - T, config.batch))
                objective = next_token_loss(model, stream[starts[:, None] + torch.arange(T)], first_token)
            for group in optimizer.param_groups:
                group["lr"] = config.rate(step)
            optimizer.zero_grad()
            objective.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            loss = float(objective.detach())
            if not math.isfinite(loss):
                raise DivergedError(f"the loss at step {step + 1}")
            losses.append(loss)
            state |= {"step": step + 1, "seconds": state["seconds"] + time.monotonic() - started}
            if (step + 1) % every == 0 or step + 1 == config.total:
                held_out_loss = _held_out_loss(model, held_out, T, first_token)
                row = {"step": step + 1, "train_loss": float(np.mean(losses)), "held_out_loss": held_out_loss}
                row |= {"bits_per_byte": held_out_loss / math.log(2) / token_bytes, "seconds": state["seconds"]}
                rows.append(row if verdicts is None else {**row, "verdict_accuracy": verdicts.accuracy()})
                losses.clear()
            try:
                on_step(Progress(step + 1, config.total, loss))
                if came:
                    raise Interrupted(number=came[0])
            except KeyboardInterrupt:
                save()
                raise
            if time.monotonic() - last_save > CHECKPOINT_SECONDS:
                save()
                last_save = time.monotonic()
        facts = {
            **identity,
            "d": num_parameters(model),
            "tokens": config.tokens,
            "data": corpus.source,
            "python": platform.python_version(),
            **{name: llm_library(name, "a model").__version__ for name in ("torch", "transformers", "tokenizers")},
            "device": f"cpu ({platform.machine()}), {torch.get_num_threads()} thread(s)",
            "evaluations": rows,
        }
        _write(model, tokenizer, T, facts, out)
        (out / CHECKPOINT_FILE).unlink(missing_ok=True)
        return facts


def _same(out: Path, found: dict[str, Any], identity: dict[str, Any]) -> dict[str, Any]:
    """What was found, if it is of the same run."""
    same = all(found.get(key) == value for key, value in identity.items())
    require(same, "out", "be empty or hold the same pretraining run, of this text and this code", str(out))
    return found


def next_token_loss(model: nn.Module, windows: Tensor, first_token: int) -> Tensor:
    """The mean loss a token of sequences of T tokens, (B, T), each behind ``</s>``."""
    sequences = nn.functional.pad(windows, (1, 0), value=first_token)
    logits = model(input_ids=sequences[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), windows.flatten())


@torch.no_grad()
def _held_out_loss(model: nn.Module, stream: Tensor, T: int, first_token: int) -> float:
    """Mean loss a token over sequences that lie evenly in the held-out text, of ``EVALUATED_TOKENS`` in all."""
    windows = stream[: len(stream) // T * T].view(-1, T)
    windows = windows[:: max(1, len(windows) * T // EVALUATED_TOKENS)]
    losses = [next_token_loss(model, part, first_token) * len(part) for part in windows.split(8)]
    return float(torch.stack(losses).sum()) / len(windows)


def _write(model: Any, tokenizer: Any, T: int, facts: dict[str, Any], out: Path) -> None:
    """The folder that ``transformers`` reads; the configuration comes last, so that no part of one looks whole."""
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}  # tied weights once
    write_atomically(out / "model.safetensors", save(weights, metadata={"format": "pt"}))
    write_atomically(out / "tokenizer.json", tokenizer.to_str(pretty=True))
    _, pad, text, unknown = SPECIAL
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text,
        "eos_token": text,
        "pad_token": pad,
        "unk_token": unknown,
        "padding_side": "left",
        "model_max_length": T,
        "clean_up_tokenization_spaces": False,
    }
    write_atomically(out / "tokenizer_config.json", json.dumps(described, indent=1))
    write_atomically(out / PROVENANCE_FILE, json.dumps(facts, indent=1, ensure_ascii=False))
    write_atomically(out / CONFIG_FILE, model.config.to_json_string())
