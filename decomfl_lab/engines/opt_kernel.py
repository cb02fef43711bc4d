"""Forward pass and loss of OPT language models on a task's prompts, as one numba kernel.

What torch cannot leave out of a small model's forward pass is left out here:

    padding             prompts lie one after another, and attention is inside a prompt
    the last layer      makes keys and values of every token, but all else of a prompt's last token alone
    the vocabulary      rows of the tokens that occur are read, and the verbalizers' are multiplied
    memory traffic      tokens go through a layer ``TOKENS`` at a time, its weights packed once a point

Every product, those of attention too, is made by the tile of ``tiles``, in vector registers.
Losses differ from torch's by float32 rounding but not with the number of threads or with the other prompts of a batch.

Source of the architecture: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022, in the form of
transformers' ``OPTForCausalLM``.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return,no-untyped-def"
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.engines.cnn_kernel import cross_entropy_of
from decomfl_lab.engines.tiles import BLOCK, PIXELS, tile
from decomfl_lab.errors import require
from decomfl_lab.language.causal import Verbalized
from decomfl_lab.layout import Layout

__all__ = ["Memory", "OptNetwork", "Prompts"]

njit: Any = numba.njit

TOKENS = 192
"""Tokens that go through a layer together, or one prompt, if that is longer."""
_OFFSET = 2
"""Row of the first position in OPT's table of positions."""
_ANY = np.float32(-np.inf)
"""Floor of a tile that has none."""
_PARTS = (
    "self_attn_layer_norm",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_proj",
    "self_attn.out_proj",
    "final_layer_norm",
    "fc1",
    "fc2",
)
"""The parts of a layer, in the order in which the kernel uses them; each has weight and bias."""


# Kernels ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _pack(packed, first, point, weight, bias, inputs, outputs):
    """Weights (outputs, inputs) as blocks of 16 outputs, (block, input, 16), then the biases."""
    for o in range(outputs):
        to, row = packed[first + o // BLOCK * BLOCK * inputs + o % BLOCK :], point[weight + o * inputs :]
        for i in range(inputs):
            to[i * BLOCK] = row[i]
        packed[first + outputs * inputs + o] = point[bias + o]


@njit(cache=True, nogil=True)
def _linear(work, src, src_rows, dst, dst_rows, rows, packed, first, shape, floor):
    """max(src Wᵀ + b, floor) to dst; W has ``shape`` (inputs, outputs); rows lie where src_rows and dst_rows say."""
    inputs, outputs = shape
    for block in range(outputs // BLOCK):
        weights, bias = first + block * BLOCK * inputs, first + outputs * inputs + block * BLOCK
        for n in range(0, rows, PIXELS):
            tile(work, src, src_rows, n, 1, 0, inputs, packed, weights, bias, dst + block * BLOCK, dst_rows, floor)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _norm(work, src, dst, rows, width, point, weight, bias, eps):
    """(src − mean) / √(variance + eps) · weight + bias to dst, row by row."""
    w, b = point[weight : weight + width], point[bias : bias + width]
    for n in range(rows):
        row, to = work[src + n * width : src + (n + 1) * width], work[dst + n * width : dst + (n + 1) * width]
        total = np.float32(0)
        for i in range(width):
            total += row[i]
        mean = total / np.float32(width)
        squares = np.float32(0)
        for i in range(width):
            squares += (row[i] - mean) * (row[i] - mean)
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            to[i] = (row[i] - mean) * scale * w[i] + b[i]


@njit(cache=True, nogil=True)
def _add(work, dst, src, count):
    to, row = work[dst : dst + count], work[src : src + count]
    for i in range(count):
        to[i] += row[i]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _softmax(row, seen, scale, powers):
    """Softmax of a row's first ``seen`` numbers, times ``scale``; the others become 0. ``powers`` is scratch, int32.

    eᵗ = 2ⁿ eʳ, n = ⌊t / ln 2 + ½⌋: r is at most ½ ln 2, and seven terms of the series leave 2⁻²³ of it. NaN stays.
    """
    top = row[0]
    for j in range(seen):
        top = max(top, row[j])
    for j in range(seen):
        t = (row[j] - top) * (scale * np.float32(1 / math.log(2)))
        t = np.float32(-126) if t < np.float32(-126) else t
        n = np.floor(t + np.float32(0.5))
        r = (t - n) * np.float32(math.log(2))
        series = np.float32(1 / 720)
        for term in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            series = series * r + np.float32(term)
        row[j] = series
        powers[j] = (np.int32(n) + np.int32(127)) << np.int32(23)  # the bits of 2ⁿ
    total = np.float32(0)
    factors = powers.view(np.float32)
    for j in range(seen):
        row[j] *= factors[j]
        total += row[j]
    share = np.float32(1) / total
    for j in range(seen):
        row[j] *= share
    for j in range(seen, row.size):
        row[j] = np.float32(0)


@njit(cache=True, nogil=True)
def _attend(work, places, rows, score_rows, first, length, query, queries, size):
    """Causal attention of one prompt: of its last ``queries`` tokens, whose rows begin at ``query``, to all of them.

    Keys and values begin at row ``first``. 6 queries at a time see the keys up to their last one's own.
    """
    width, heads = size
    q, k, v, mixed, scores, powers_at, keys, values, zeros = places
    powers = work[powers_at : powers_at + length].view(np.int32)
    each = width // heads
    scale = np.float32(1 / math.sqrt(each))
    reach = -(-length // BLOCK) * BLOCK
    for i in range(PIXELS):
        score_rows[i] = i * reach
    for head in range(heads):
        own = head * each
        for start in range(0, length, BLOCK):  # (block, channel, 16 keys); what is no key is not looked at
            to, row = work[keys + start * each :], work[k + (first + start) * width + own :]
            for c in range(each):
                for t in range(BLOCK):
                    to[c * BLOCK + t] = row[t * width + c]
        for start in range(0, each, BLOCK):  # (block, key, 16 channels); what is no channel is not looked at
            to, row = work[values + start * length :], work[v + first * width + own + start :]
            for t in range(length):
                for c in range(BLOCK):
                    to[t * BLOCK + c] = row[t * width + c]
        for n in range(0, queries, PIXELS):
            before = length - queries + n  # tokens that all of these see, but for their own
            seen = min(before + PIXELS, length)
            for start in range(0, seen, BLOCK):
                at, from_, to = keys + start * each, q + (query + n) * width + own, scores + start
                tile(work, from_, rows[0], 0, 1, 0, each, work, at, zeros, to, score_rows, _ANY)
            for i in range(min(PIXELS, queries - n)):
                row = scores + score_rows[i]
                _softmax(work[row : row + seen], before + i + 1, scale, powers)
            for start in range(0, each, BLOCK):  # a block's surplus channels are the next head's, which come later
                at, to = values + start * length, mixed + (query + n) * (width + BLOCK) + own + start
                tile(work, scores, score_rows, 0, 1, 0, seen, work, at, zeros, to, rows[1], _ANY)


@njit(cache=True, nogil=True)
def _losses(
    out, point, tokens, starts, targets, memory, regions, rows, score_rows, layers, tables, verbalizers, shape, eps
):
    """out[n] = cross entropy of prompt n; see ``OptNetwork``."""
    work, packed = memory
    width, heads, inner = shape
    embedding, position, norm, norm_bias, head = tables
    x, ends, u, q, k, v, mixed, f, scores, powers, keys, values, zeros, logits = regions
    places = (q, k, v, mixed, scores, powers, keys, values, zeros)
    square, up, down = (width, width), (width, inner), (inner, width)
    prompts = starts.size - 1
    for n in range(prompts):
        for t in range(starts[n], starts[n + 1]):
            word, place = embedding + tokens[t] * width, position + (t - starts[n] + _OFFSET) * width
            for i in range(width):
                work[x + t * width + i] = point[word + i] + point[place + i]
    side = width * width + width
    after = 4 * side
    for layer in range(layers.shape[0]):
        own = layers[layer]
        last = layer == layers.shape[0] - 1
        for part in range(4):
            _pack(packed, part * side, point, own[2 + 2 * part], own[3 + 2 * part], width, width)
        _pack(packed, after, point, own[12], own[13], width, inner)
        _pack(packed, after + width * inner + inner, point, own[14], own[15], inner, width)
        a = 0
        while a < prompts:
            b = a + 1
            while b < prompts and starts[b + 1] - starts[a] <= TOKENS:
                b += 1
            first, count = starts[a], starts[b] - starts[a]
            here = x + first * width
            _norm(work, here, u, count, width, point, own[0], own[1], eps)
            _linear(work, u, rows[0], k, rows[0], count, packed, 0, square, _ANY)
            _linear(work, u, rows[0], v, rows[0], count, packed, side, square, _ANY)
            if last:  # rows of the prompts' last tokens alone
                here, count = ends + a * width, b - a
                for n in range(a, b):
                    for i in range(width):
                        work[ends + n * width + i] = work[x + (starts[n + 1] - 1) * width + i]
                        work[u + (n - a) * width + i] = work[u + (starts[n + 1] - 1 - first) * width + i]
            _linear(work, u, rows[0], q, rows[0], count, packed, 2 * side, square, _ANY)
            for n in range(a, b):
                length, at = starts[n + 1] - starts[n], starts[n] - first
                queries, query = (1, n - a) if last else (length, at)
                _attend(work, places, rows, score_rows, at, length, query, queries, (width, heads))
            _linear(work, mixed, rows[1], u, rows[0], count, packed, 3 * side, square, _ANY)
            _add(work, here, u, count * width)
            _norm(work, here, u, count, width, point, own[10], own[11], eps)
            _linear(work, u, rows[0], f, rows[2], count, packed, after, up, np.float32(0))
            _linear(work, f, rows[2], u, rows[0], count, packed, after + width * inner + inner, down, _ANY)
            _add(work, here, u, count * width)
            a = b
    for n in range(prompts):
        _norm(work, ends + n * width, u, 1, width, point, norm, norm_bias, eps)
        for c in range(verbalizers.size):
            total = 0.0
            for i in range(width):
                total += work[u + i] * np.float64(point[head + verbalizers[c] * width + i])
            work[logits + c] = total
        out[n] = cross_entropy_of(work, logits, verbalizers.size, targets[n])


# Models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompts:
    """Prompts without padding, one after another.

    Attributes:
        tokens: Their tokens, (Σ lengths,).
        starts: The place where each prompt begins, and the end of the last, (n + 1,).
    """

    tokens: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def longest(self) -> int:
        """Tokens of the longest."""
        return int(np.diff(self.starts).max())


class Memory:
    """What one thread computes in: as much as was ever needed."""

    def __init__(self) -> None:
        self._work = np.zeros(0, dtype=np.float32)
        self._packed = np.zeros(0, dtype=np.float32)

    def sized(self, work: int, packed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Two vectors of at least these numbers of elements, with anything in them."""
        if self._work.size < work:
            self._work = np.zeros(work, dtype=np.float32)
        if self._packed.size < packed:
            self._packed = np.zeros(packed, dtype=np.float32)
        return self._work, self._packed


class OptNetwork:
    """An OPT model that answers a task, as tables for the kernel; mean cross-entropy over the verbalizers is the loss.

    OPT as ``facebook/opt-125m`` and ``llm.family`` have it: norms before, ReLU, biases, an embedding as wide as the
    model. Where every parameter is in x, in float32.

    Attributes:
        classes: C.
    """

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        """Find the parameters.

        Raises:
            InputError: If the model is no OPT, one of another form (opt-350m), or has parameters of another's, or
                frozen ones; the message names what.
        """
        kind = type(module.module).__name__ if isinstance(module, Verbalized) else type(module).__name__
        require(kind == "OPTForCausalLM", "model", "be an OPT for the fused engine", kind)
        assert isinstance(module, Verbalized)
        config: Any = module.module.config
        self.width, self.heads, self.inner = config.hidden_size, config.num_attention_heads, config.ffn_dim
        self.classes, self.pad = len(module.verbalizers), module.pad
        self.vocabulary, self.context = config.vocab_size, config.max_position_embeddings
        for name, wanted in (
            ("do_layer_norm_before", True),
            ("_remove_final_layer_norm", False),
            ("activation_function", "relu"),
            ("enable_bias", True),
            ("layer_norm_elementwise_affine", True),
            ("word_embed_proj_dim", self.width),
        ):
            found = getattr(config, name)
            require(found == wanted, f"{name} of the model", f"be {wanted} for the fused engine", found)
        for name in ("hidden_size", "ffn_dim"):
            found = getattr(config, name)
            require(found % BLOCK == 0, f"{name} of the model", f"be a multiple of {BLOCK} for the fused engine", found)
        require(layout.dtype == torch.float32, "dtype", "be float32 for the fused engine", layout.dtype)
        frozen = {name for name, _ in module.named_parameters()} - set(layout.names)
        require(not frozen, "parameters", "all be trainable for the fused engine", sorted(frozen)[:3])
        place = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
        decoder, pair = "module.model.decoder.", ("weight", "bias")
        layers = [
            [f"{decoder}layers.{n}.{part}.{which}" for part in _PARTS for which in pair]
            for n in range(config.num_hidden_layers)
        ]
        tables = [f"{decoder}embed_{what}.weight" for what in ("tokens", "positions")]
        tables += [f"{decoder}final_layer_norm.{which}" for which in pair]
        head = "module.lm_head.weight" if "module.lm_head.weight" in place else tables[0]  # tied
        foreign = set(place) - {*tables, head, *(name for names in layers for name in names)}
        require(not foreign, "parameters", "be those of an OPT for the fused engine", sorted(foreign)[:3])
        self._layers = np.array([[place[name] for name in names] for names in layers], dtype=np.int64)
        self._tables = tuple(place[name] for name in (*tables, head))
        self._verbalizers = np.array(module.verbalizers, dtype=np.int64)
        self._eps = np.float32(nn.LayerNorm(1).eps)  # OPT's are made with torch's own

    def prompts(self, ids: Tensor) -> Prompts:
        """Prompts (n, T), padded on the left, without their padding.

        Raises:
            InputError: If one ends in padding, is too long or has a token that the vocabulary lacks.
        """
        real = ids != self.pad
        require(bool(real[:, -1].all()), "prompts", "be padded on the left for the fused engine", "one that ends in it")
        lengths = real.sum(1)
        require(
            int(lengths.max()) <= self.context, "prompts", f"have at most {self.context} tokens", int(lengths.max())
        )
        tokens = ids[real].numpy()
        low, high = int(tokens.min()), int(tokens.max())
        require(low >= 0 and high < self.vocabulary, "tokens", f"be in 0..{self.vocabulary - 1}", (low, high))
        return Prompts(tokens, np.concatenate([[0], lengths.cumsum(0).numpy()]))

    def workspace(self) -> Memory:
        """Memory for one thread."""
        return Memory()

    def losses(
        self, point: Tensor, prompts: Prompts, targets: NDArray[np.int64], workspace: Memory
    ) -> NDArray[np.float64]:
        """The loss of each prompt, (n,), at the parameters ``point`` (d,)."""
        width, inner, n = self.width, self.inner, len(targets)
        longest = prompts.longest
        rows = max(TOKENS, longest) + BLOCK  # at once, and what a last tile has too many of
        reach = longest + BLOCK
        each = -(-width // self.heads // BLOCK) * BLOCK
        sizes = {
            "x": len(prompts.tokens) * width,
            "ends": n * width,
            "u": rows * width,
            "q": rows * width,
            "k": rows * width,
            "v": rows * width + BLOCK,
            "mixed": rows * (width + BLOCK),
            "f": rows * inner,
            "scores": PIXELS * reach,
            "powers": longest,
            "keys": reach * each,
            "values": longest * each,
            "zeros": BLOCK,
            "logits": self.classes,
        }
        *regions, size = np.cumsum([0, *sizes.values()]).tolist()
        memory = workspace.sized(size, 4 * (width * width + width) + 2 * width * inner + inner + width)
        zeros = regions[list(sizes).index("zeros")]
        memory[0][zeros : zeros + BLOCK] = 0
        steps = np.arange(rows)
        out = np.empty(n, dtype=np.float64)
        _losses(
            out,
            point.numpy(),
            prompts.tokens,
            prompts.starts,
            targets,
            memory,
            tuple(regions),
            (steps * width, steps * (width + BLOCK), steps * inner),
            np.zeros(PIXELS, dtype=np.int64),
            self._layers,
            self._tables,
            self._verbalizers,
            (width, self.heads, inner),
            self._eps,
        )
        return out
