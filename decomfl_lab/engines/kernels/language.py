"""Forward pass and loss of OPT and Llama language models on a task's prompts, a layer at a time, as numba kernels.

What torch cannot leave out of a forward pass is left out here:

    the point           x + μz is formed a layer at a time, for +μ and −μ together, and of the embedding only the rows
                        that are read: nothing of the size of the model is made
    padding             prompts lie one after another, and attention is inside a prompt
    the last layer      makes keys and values of every token, but all else of a prompt's last token alone
    the vocabulary      the verbalizers' rows alone are multiplied
    memory traffic      tokens go through a layer ``TOKENS`` at a time, its weights packed once for all clients

Every product, those of attention too, is made by the tiles of ``tiles``, in vector registers.
Losses differ from torch's by float32 rounding but not with the number of threads or with the other prompts of a batch.
``engine.Fused`` calls ``LanguageNetwork``. The kernels' arrays are flat float32; what a tuple ``(inputs, outputs,
weight, bias)`` or ``(weight, bias)`` says of a map or a norm are numbers and places in the layer's ``point``, −1: none.

Sources of the architectures: Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022; Touvron et al.,
"LLaMA: Open and Efficient Foundation Language Models", 2023, with the grouped queries of Ainslie et al., "GQA", 2023;
in the form of transformers' ``OPTForCausalLM`` and ``LlamaForCausalLM``.
"""

# mypy: disable-error-code="no-untyped-call,misc,untyped-decorator,no-any-return,no-untyped-def"
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decomfl_lab.engines.kernels.cnn import cross_entropy_of
from decomfl_lab.engines.kernels.tiles import BLOCK, PIXELS, WIDE, tile, turned, wide_tile
from decomfl_lab.errors import require
from decomfl_lab.language.causal_model import Verbalized
from decomfl_lab.layout import Layout
from decomfl_lab.noise.kernel_cache import njit

TOKENS = 1024
"""Tokens that go through a layer together, or one prompt, if that is longer."""
AHEAD = 1 << 16
"""Least number of elements of a point that are formed together: a call costs about as much as so many."""
_OFFSET = 2
"""Row of the first position in OPT's table of positions."""
_ANY = np.float32(-np.inf)
"""Floor of a tile that has none."""


# Kernels ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _linear(work, src, src_rows, dst, dst_rows, rows, point, linear, packed, floor):
    """max(src Wᵀ + b, floor) to dst; row n begins at work[src + src_rows[n]] and work[dst + dst_rows[n]].

    ``WIDE`` rows of W (outputs, inputs), or the last ``BLOCK``, are packed at a time, (input, output of these), so that
    they are in the cache; ``packed`` is room for them and their biases.
    """
    inputs, outputs, weight, bias = linear
    for o in range(0, outputs, WIDE):
        width = min(WIDE, outputs - o)
        for i in range(0, inputs, BLOCK):
            for c in range(0, width, BLOCK):
                # A tile reads, input after input, the weights of ``width`` outputs side by side.
                # W has its outputs as rows, so it is transposed, 16 × 16 numbers at a time.
                turned(packed, i * width + c, width, point, weight + (o + c) * inputs + i, inputs)
        for c in range(width):
            packed[WIDE * inputs + c] = point[bias + o + c] if bias >= 0 else np.float32(0)
        # A product by a matrix is a convolution of one tap row that is ``inputs`` long. The last tile may take rows
        # beyond ``rows``: there is memory for them, and nobody reads what becomes of them.
        for n in range(0, rows, PIXELS):
            if width == WIDE:
                wide_tile(work, src, src_rows, n, 1, 0, inputs, packed, 0, WIDE * inputs, dst + o, dst_rows, floor)
            else:
                tile(work, src, src_rows, n, 1, 0, inputs, packed, 0, WIDE * inputs, dst + o, dst_rows, floor)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _layer_norm(rows, to, count, width, w, b, eps):
    """(row − mean) / √(variance + eps) · w + b, row by row."""
    for n in range(count):
        row, out = rows[n * width : (n + 1) * width], to[n * width : (n + 1) * width]
        # "reassoc" lets these sums run in vector registers: their order is the compiler's, and the same in every call.
        total = np.float32(0)
        for i in range(width):
            total += row[i]
        mean = total / np.float32(width)
        squares = np.float32(0)
        for i in range(width):
            squares += (row[i] - mean) * (row[i] - mean)
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            out[i] = (row[i] - mean) * scale * w[i] + b[i]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _rms_norm(rows, to, count, width, w, eps):
    """The row / √(its mean square + eps) · w, row by row."""
    for n in range(count):
        row, out = rows[n * width : (n + 1) * width], to[n * width : (n + 1) * width]
        squares = np.float32(0)
        for i in range(width):
            squares += row[i] * row[i]
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            out[i] = row[i] * scale * w[i]


@njit(cache=True, nogil=True)
def _norm(rows, to, count, width, point, norm, eps):
    """The norm (weight, bias) of ``count`` rows, ``width`` numbers each, written to ``to``; without a bias Llama's."""
    w = point[norm[0] : norm[0] + width]
    if norm[1] < 0:
        _rms_norm(rows, to, count, width, w, eps)
    else:
        _layer_norm(rows, to, count, width, w, point[norm[1] : norm[1] + width], eps)


@njit(cache=True, nogil=True)
def _add(to, terms, count):
    for i in range(count):
        to[i] += terms[i]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _exponentials(row, count, top, scale, powers):
    """The row's first ``count`` numbers u become eʳ and the bits of 2ⁿ in ``powers``, int32: their product is eᵗ.

    t = scale (u − top) = n ln 2 + r, n = ⌊t / ln 2 + ½⌋: r is at most ½ ln 2, and seven terms of the series leave 2⁻²³
    of it. NaN stays. t must be below 88.
    """
    for j in range(count):
        # From here t is in units of ln 2. Below −126 the power of 2 would be no normal number. NaN is not below.
        t = (row[j] - top) * (scale * np.float32(1 / math.log(2)))
        t = np.float32(-126) if t < np.float32(-126) else t
        n = np.floor(t + np.float32(0.5))
        r = (t - n) * np.float32(math.log(2))
        # Horner: 1 + r + r²/2 + ... + r⁶/720.
        series = np.float32(1 / 720)
        for term in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            series = series * r + np.float32(term)
        row[j] = series
        # The float32 2ⁿ has no mantissa: its bits are its exponent, n + 127, alone.
        powers[j] = (np.int32(n) + np.int32(127)) << np.int32(23)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _softmax(row, seen, scale, powers):
    """Softmax of a row's first ``seen`` numbers, times ``scale``; the others become 0. ``powers`` is scratch, int32."""
    top = row[0]
    for j in range(seen):
        top = max(top, row[j])
    _exponentials(row, seen, top, scale, powers)
    total = np.float32(0)
    # The bits of 2ⁿ, read as the float32 that they are.
    factors = powers.view(np.float32)
    for j in range(seen):
        row[j] *= factors[j]
        total += row[j]
    share = np.float32(1) / total
    for j in range(seen):
        row[j] *= share
    for j in range(seen, row.size):
        row[j] = np.float32(0)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _gate(gates, to, count, scratch, powers):
    """Multiply each number of ``to`` by g / (1 + e⁻ᵍ) for its gate g; ``powers`` is scratch, int32."""
    for j in range(count):
        # e⁻ᵍ of a gate below −88 would overflow.
        scratch[j] = np.float32(-87) if gates[j] < np.float32(-87) else gates[j]
    _exponentials(scratch, count, np.float32(0), np.float32(-1), powers)
    factors = powers.view(np.float32)
    for j in range(count):
        to[j] *= gates[j] / (np.float32(1) + scratch[j] * factors[j])


@njit(cache=True, nogil=True, fastmath={"contract"})
def _rotate(row, channels, cosines, sines):
    """Rotary embedding of the heads in a row: channel i and i + channels/2 of a head are turned together."""
    half = channels // 2
    for head in range(0, row.size, channels):
        for i in range(half):
            a, b = row[head + i], row[head + i + half]
            row[head + i] = a * cosines[i] - b * sines[i]
            row[head + i + half] = b * cosines[i] + a * sines[i]


@njit(cache=True, nogil=True)
def _attend(work, places, steps, score_rows, first, length, query, queries, size, rotation):
    """Causal attention of one prompt: of its last ``queries`` tokens, whose rows begin at ``query``, to all of them.

    Keys and values begin at row ``first``. 6 or 12 queries at a time see the keys up to their last one's own.
    ``places`` are those in ``work`` of what ``LanguageNetwork._scratch`` lays out there.
    """
    heads, group, channels = size
    by_query, by_mixed = steps
    q, k, v, mixed, scores, powers_at, keys, values, zeros = places
    powers = work[powers_at : powers_at + length].view(np.int32)
    wide, narrow = heads * channels, heads // group * channels
    cosines, sines = rotation
    if cosines.shape[0]:
        for t in range(length):
            _rotate(work[k + (first + t) * narrow : k + (first + t + 1) * narrow], channels, cosines[t], sines[t])
        for n in range(queries):
            t, row = length - queries + n, q + (query + n) * wide
            _rotate(work[row : row + wide], channels, cosines[t], sines[t])
    # Scores are ⟨query, key⟩ / √channels: the softmax takes the factor into its exponent.
    scale = np.float32(1 / math.sqrt(channels))
    reach = -(-length // BLOCK) * BLOCK
    for i in range(PIXELS):
        score_rows[i] = i * reach
    for head in range(heads):
        query_channel, key_channel = head * channels, head // group * channels
        # ``group`` heads of queries share one head of keys and values, which is packed once for all of them.
        if head % group == 0:
            for start in range(0, length, BLOCK):  # (block, channel, 16 keys); what is no key is not looked at
                packed, row = work[keys + start * channels :], work[k + (first + start) * narrow + key_channel :]
                for c in range(channels):
                    for t in range(BLOCK):
                        packed[c * BLOCK + t] = row[t * narrow + c]
            for start in range(0, channels, BLOCK):  # (block, key, 16 channels); what is no channel is not looked at
                packed, row = work[values + start * length :], work[v + first * narrow + key_channel + start :]
                for t in range(length):
                    for c in range(BLOCK):
                        packed[t * BLOCK + c] = row[t * narrow + c]
        for n in range(0, queries, PIXELS):
            before = length - queries + n  # tokens that all of these see, but for their own
            seen = min(before + PIXELS, length)
            for start in range(0, seen, BLOCK):
                src = q + (query + n) * wide + query_channel
                block = keys + start * channels
                dst = scores + start
                tile(work, src, by_query, 0, 1, 0, channels, work, block, zeros, dst, score_rows, _ANY)
            for i in range(min(PIXELS, queries - n)):
                row = scores + score_rows[i]
                # Query i sees the keys up to its own. The weights of later ones become 0, and their values do not
                # count.
                _softmax(work[row : row + seen], before + i + 1, scale, powers)
            for start in range(0, channels, BLOCK):  # a block's surplus channels are the next head's, which come later
                block = values + start * length
                dst = mixed + (query + n) * (wide + BLOCK) + query_channel + start
                tile(work, scores, score_rows, 0, 1, 0, seen, work, block, zeros, dst, by_mixed, _ANY)


@njit(cache=True, nogil=True)
def _layer(x, ends, starts, point, linears, norms, rotation, packed, work, regions, steps, score_rows, size, eps, last):
    """A layer, whose parameters lie in ``point``: the rows x of all tokens change, or rows of last tokens to ``ends``.

    ``starts`` (n + 1,) int64 is of ``Prompts``; ``regions``, ``steps``, ``score_rows`` and ``size`` are what
    ``LanguageNetwork._scratch`` gives, ``eps`` float32 is the norms'.
    """
    width, inner, heads, group, channels = size
    u, q, k, v, mixed, f, gates, scores, powers, keys, values, zeros = regions
    by_width, by_inner, by_query, by_key, by_mixed = steps
    places = (q, k, v, mixed, scores, powers, keys, values, zeros)
    gated = len(linears) == 7
    a, prompts = 0, starts.size - 1
    while a < prompts:
        # Prompts a..b − 1 go through the layer together: as many as ``TOKENS`` allows, but at least one.
        b = a + 1
        while b < prompts and starts[b + 1] - starts[a] <= TOKENS:
            b += 1
        first, count = starts[a], starts[b] - starts[a]
        residual = x[first * width :]
        _norm(residual, work[u:], count, width, point, norms[0], eps)
        _linear(work, u, by_width, k, by_key, count, point, linears[0], packed, _ANY)
        _linear(work, u, by_width, v, by_key, count, point, linears[1], packed, _ANY)
        if last:  # rows of the prompts' last tokens alone
            residual, count = ends[a * width :], b - a
            # A prompt has a token at least, so its last one is in row n − a of u or later: none is overwritten before
            # it is read.
            for n in range(a, b):
                for i in range(width):
                    ends[n * width + i] = x[(starts[n + 1] - 1) * width + i]
                    work[u + (n - a) * width + i] = work[u + (starts[n + 1] - 1 - first) * width + i]
        _linear(work, u, by_width, q, by_query, count, point, linears[2], packed, _ANY)
        # Attention is inside a prompt. In the last layer each prompt has one query, which is in row n − a.
        for n in range(a, b):
            length, row = starts[n + 1] - starts[n], starts[n] - first
            shape = heads, group, channels
            query, queries = row, length
            if last:
                query, queries = n - a, 1
            _attend(work, places, (by_query, by_mixed), score_rows, row, length, query, queries, shape, rotation)
        _linear(work, mixed, by_mixed, u, by_width, count, point, linears[3], packed, _ANY)
        _add(residual, work[u:], count * width)
        _norm(residual, work[u:], count, width, point, norms[1], eps)
        # OPT's ReLU is the floor of the tile. Llama's SiLU gate is a map of its own, whose output multiplies f.
        _linear(work, u, by_width, f, by_inner, count, point, linears[4], packed, _ANY if gated else np.float32(0))
        if gated:
            _linear(work, u, by_width, gates, by_inner, count, point, linears[-1], packed, _ANY)
            scratch, bits = work[scores : scores + inner], work[powers : powers + inner].view(np.int32)
            for n in range(count):
                _gate(work[gates + n * inner :], work[f + n * inner :], inner, scratch, bits)
        _linear(work, f, by_inner, u, by_width, count, point, linears[5], packed, _ANY)
        _add(residual, work[u:], count * width)
        a = b


@njit(cache=True, nogil=True)
def _answer(out, ends, point, norm, head, targets, eps):
    """out[n] = cross entropy of prompt n, whose last hidden state is row n of ``ends``; ``head`` (C, width)."""
    classes, width = head.shape
    u, logits = np.empty(width, dtype=np.float32), np.empty(classes, dtype=np.float32)
    for n in range(out.size):
        _norm(ends[n * width :], u, 1, width, point, norm, eps)
        for c in range(classes):
            total = 0.0
            for i in range(width):
                total += u[i] * np.float64(head[c, i])
            logits[c] = total
        out[n] = cross_entropy_of(logits, 0, classes, targets[n])


# Models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompts:
    """Prompts without padding, one after another."""

    tokens: NDArray[np.int64]  # their tokens, (Σ lengths,)
    starts: NDArray[np.int64]  # the place where each prompt begins, and the end of the last, (n + 1,)

    @classmethod
    def together(cls, batches: "Sequence[Prompts]") -> "Prompts":
        """The prompts of all batches."""
        lengths = np.concatenate([np.diff(batch.starts) for batch in batches])
        return cls(np.concatenate([batch.tokens for batch in batches]), np.concatenate([[0], lengths.cumsum()]))


class Memory:
    """What one thread computes in: as much as was ever needed."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def sized(self, name: str, size: int) -> Tensor:
        """The vector of this name, with so many elements of any values."""
        if name not in self._kept or self._kept[name].numel() < size:
            self._kept[name] = torch.zeros(size)
        return self._kept[name][:size]


Form = Callable[[Sequence[Tensor], int], None]
"""Writes elements first.. of one or two points to as many vectors."""


class _Formed:
    """Elements of points, which are formed when they are asked for, best in ascending order."""

    def __init__(self, form: Form, points: int, d: int, memory: Memory) -> None:
        self._form, self._points, self._d, self._memory = form, points, d, memory
        self._first = self._stop = 0
        self._parts: list[Tensor] = []

    def __call__(self, first: int, stop: int) -> list[NDArray[np.float32]]:
        """Elements first..stop - 1 of each point, which are there until the next call."""
        # What was formed last is kept while it will do. Else at least ``AHEAD`` elements are formed from ``first`` on.
        if not self._first <= first <= stop <= self._stop:
            self._first, self._stop = first, min(max(stop, first + AHEAD), self._d)
            self._parts = [self._memory.sized(f"point {n}", self._stop - first) for n in range(self._points)]
            self._form(self._parts, first)
        return [part[first - self._first : stop - self._first].numpy() for part in self._parts]

    def rows(self, first: int, width: int, numbers: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of each point's matrix that begins at element ``first``, (points, numbers, width)."""
        # Each row is formed once, in ascending order: of a piece that has been formed all rows that lie in it whole
        # are taken before the next piece.
        distinct, place = np.unique(numbers, return_inverse=True)
        taken = np.empty((self._points, len(distinct), width), dtype=np.float32)
        done = 0
        while done < len(distinct):
            begin = first + width * int(distinct[done])
            self(begin, begin + width)
            stop = int(np.searchsorted(distinct, (self._stop - first) // width))
            for taken_of_point, part in zip(taken, self(begin, self._stop), strict=True):
                rows = part[: part.size // width * width].reshape(-1, width)
                taken_of_point[done:stop] = rows[distinct[done:stop] - distinct[done]]
            done = stop
        return taken.take(place, axis=1)


@dataclass(frozen=True)
class Architecture:
    """What a kind of model has, by the names of its modules."""

    layers: str  # the list of layers in the module that knows no head
    # Maps of a layer: to keys, values and queries, from attention, up, down and, where there is one, to the gate.
    linears: tuple[str, ...]
    norms: tuple[str, ...]  # norms of a layer, and of the model after the last
    pair: tuple[str, ...]  # parameters of a map and of a norm
    tables: tuple[str, ...]  # embeddings of tokens and, where there are any, of positions
    form: Mapping[str, object]  # what the configuration has to say


ARCHITECTURES = {
    # As ``facebook/opt-125m`` and ``language.opt`` have it: norms before, ReLU, biases.
    "OPTForCausalLM": Architecture(
        layers="module.model.decoder.layers",
        linears=(*(f"self_attn.{part}_proj" for part in ("k", "v", "q", "out")), "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm", "final_layer_norm"),
        pair=("weight", "bias"),
        tables=("embed_tokens", "embed_positions"),
        form={
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "activation_function": "relu",
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
    ),
    # As ``HuggingFaceTB/SmolLM2-135M`` has it: RMS norms, rotary embeddings, grouped queries, a SiLU gate.
    "LlamaForCausalLM": Architecture(
        layers="module.model.layers",
        linears=(
            *(f"self_attn.{part}_proj" for part in ("k", "v", "q", "o")),
            *(f"mlp.{part}_proj" for part in ("up", "down", "gate")),
        ),
        norms=("input_layernorm", "post_attention_layernorm", "norm"),
        pair=("weight",),
        tables=("embed_tokens",),
        form={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
    ),
}
"""By the class of the model in transformers."""


class LanguageNetwork:
    """A language model that answers a task, as tables for the kernels; the loss is cross entropy over the verbalizers.

    Every parameter is in x, in float32.
    """

    def __init__(self, module: Verbalized, layout: Layout) -> None:
        """Find the parameters.

        InputError if the kernels do not compute this kind or form of model, or scaled rotary embeddings, or it has
        parameters of another's, or frozen ones; the message names what.
        """
        kind = type(module.module).__name__
        require(kind in ARCHITECTURES, "model", f"be one of {', '.join(ARCHITECTURES)} for the fused engine", kind)
        model = self.architecture = ARCHITECTURES[kind]
        config: Any = module.module.config
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.channels = getattr(config, "head_dim", self.width // self.heads)
        self.group = self.heads // getattr(config, "num_key_value_heads", self.heads)
        self.classes = len(module.verbalizers)  # the number C
        self.pad, self.d = module.pad, layout.d
        self.vocabulary, self.context = config.vocab_size, config.max_position_embeddings
        for name, wanted in model.form.items():
            value = getattr(config, name)
            require(value == wanted, f"{name} of the model", f"be {wanted} for the fused engine", value)
        require(layout.dtype == torch.float32, "dtype", "be float32 for the fused engine", layout.dtype)
        frozen = {name for name, _ in module.named_parameters()} - set(layout.names)
        require(not frozen, "parameters", "all be trainable for the fused engine", sorted(frozen)[:3])
        # The place of each parameter in x. The last of the sums is d, to which no name belongs.
        place = dict(zip(layout.names, np.cumsum([0, *layout.sizes]).tolist(), strict=False))
        shape = dict(zip(layout.names, layout.shapes, strict=True))
        base = model.layers.rpartition(".")[0]
        tables = [f"{base}.{name}.weight" for name in model.tables]
        head = "module.lm_head.weight" if "module.lm_head.weight" in place else tables[0]  # tied
        final = [f"{base}.{model.norms[-1]}.{which}" for which in model.pair]
        parts = [f"{part}.{which}" for part in (*model.linears, *model.norms[:-1]) for which in model.pair]
        layers = [[f"{model.layers}.{n}.{part}" for part in parts] for n in range(config.num_hidden_layers)]
        known = {*tables, head, *final, *(name for names in layers for name in names)}
        # In one of the sets alone: what the architecture has and the model lacks, and the other way round.
        foreign = sorted(known ^ set(place))[:3]
        require(not foreign, "parameters", "be those of the architecture for the fused engine", foreign)
        self._starts = [min(place[name] for name in names) for names in layers]
        offsets = {part: place[name] - self._starts[0] for part, name in zip(parts, layers[0], strict=True)}
        for start, names in zip(self._starts, layers, strict=True):  # torch names a module's parameters in one order
            assert [place[name] - start for name in names] == [*offsets.values()]
        self._size = sum(shape[name].numel() for name in layers[0])

        def places(part: str) -> tuple[int, int]:
            return offsets[f"{part}.weight"], offsets.get(f"{part}.bias", -1)

        self._norms = tuple(places(part) for part in model.norms[:-1])
        self._linears: tuple[tuple[int, ...], ...] = ()
        for part in model.linears:
            outputs, inputs = shape[f"{model.layers}.0.{part}.weight"]
            whole = inputs % BLOCK == outputs % BLOCK == 0
            rule = f"be multiples of {BLOCK} for the fused engine"
            require(whole, f"inputs and outputs of {part}", rule, (inputs, outputs))
            self._linears += ((inputs, outputs, *places(part)),)
        self._tables = [place[name] for name in tables]
        self._head = place[head]
        self._final = place[final[0]]
        self._verbalizers = module.verbalizers
        rotary: Any = getattr(module.module.base_model, "rotary_emb", None)
        scaled = "default" if rotary is None else rotary.rope_type
        require(scaled == "default", "rope_type of the model", "be default for the fused engine", scaled)
        self._frequencies = None if rotary is None else rotary.inv_freq.float()
        self._eps = np.float32(getattr(config, "rms_norm_eps", nn.LayerNorm(1).eps))  # OPT's are made with torch's own

    def prompts(self, ids: Tensor) -> Prompts:
        """Prompts (n, T), padded on the left, without their padding.

        InputError if one ends in padding, is too long or has a token that the vocabulary lacks.
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

    def rotation(self, length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines of the angles that queries and keys are turned by, (length, channels / 2); or (0, 0)."""
        if self._frequencies is None:
            nothing = np.zeros((0, 0), dtype=np.float32)
            return nothing, nothing
        angles = torch.arange(length, dtype=torch.float32)[:, None] * self._frequencies
        return angles.cos().numpy(), angles.sin().numpy()

    def losses(
        self, form: Form, points: int, prompts: Prompts, targets: NDArray[np.int64], memory: Memory
    ) -> NDArray[np.float64]:
        """The loss of each of n prompts, of these classes (n,), at each of one or two points, (points, n).

        ``form`` writes elements of the points, ``memory`` is this thread's.
        """
        n, width, formed = len(targets), self.width, _Formed(form, points, self.d, memory)
        lengths = np.diff(prompts.starts)
        longest = int(lengths.max())
        # The rows of the vocabulary that are read: those of the verbalizers, (points, C, width), and those of the
        # tokens, (points, tokens, width), which become the residual x.
        head = formed.rows(self._head, width, self._verbalizers)
        x = formed.rows(self._tables[0], width, prompts.tokens)
        if len(self._tables) > 1:
            # Positions count from 0 in each prompt.
            positions = np.arange(len(prompts.tokens)) - prompts.starts[:-1].repeat(lengths)
            x += formed.rows(self._tables[1], width, _OFFSET + positions)
        # The final norm's (points × (weight, bias)); copies, since the next call of ``formed`` writes over this one's.
        final = [part.copy() for part in formed(self._final, self._final + len(self.architecture.pair) * width)]
        ends, out = np.empty((points, n * width), dtype=np.float32), np.empty((points, n))
        rotation = self.rotation(longest)
        scratch = self._scratch(longest, memory)
        packed = memory.sized("packed", WIDE * (max(inputs for inputs, *_ in self._linears) + 1)).numpy()
        # Layer by layer: its parameters are formed for all points, and then each point takes its tokens through it.
        for start in self._starts:
            parts = formed(start, start + self._size)
            for i, part in enumerate(parts):
                residual, last = x[i].reshape(-1), start == self._starts[-1]
                tables = (self._linears, self._norms, rotation)
                _layer(residual, ends[i], prompts.starts, part, *tables, packed, *scratch, self._eps, last)
        for i in range(points):
            # The final norm's bias follows its weight in x.
            norm = (0, width if "bias" in self.architecture.pair else -1)
            _answer(out[i], ends[i], final[i], norm, head[i], targets, self._eps)
        return out

    def _scratch(self, longest: int, memory: Memory) -> tuple[Any, ...]:
        """What ``_layer`` computes in: memory, where each thing lies there, and how far its rows are apart."""
        inner, gated = self._linears[4][1], len(self._linears) == 7
        wide, narrow = self.heads * self.channels, self.heads // self.group * self.channels
        rows = max(TOKENS, longest) + BLOCK  # at once, and what a last tile has too many of
        reach, channels = longest + BLOCK, -(-self.channels // BLOCK) * BLOCK
        sizes = {
            "u": rows * self.width,
            "q": rows * wide,
            "k": rows * narrow,
            "v": rows * narrow + BLOCK,
            "mixed": rows * (wide + BLOCK),
            "f": rows * inner,
            "gates": rows * inner * gated,
            "scores": max(PIXELS * reach, inner),
            "powers": max(longest, inner),
            "keys": reach * channels,
            "values": longest * channels,
            "zeros": BLOCK,
        }
        *regions, size = np.cumsum([0, *sizes.values()]).tolist()
        work = memory.sized("work", size).numpy()
        work[regions[-1] :] = 0
        steps = tuple(np.arange(rows) * step for step in (self.width, inner, wide, narrow, wide + BLOCK))
        shape = (self.width, inner, self.heads, self.group, self.channels)
        return work, tuple(regions), steps, np.zeros(PIXELS, dtype=np.int64), shape
