"""A round that fine-tunes a language model, in every way that it can be done."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.ways.mezo import WideLine, in_place_scalars, move_
from decomfl_lab.engines.base import Plain
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.estimators.differences import central
from decomfl_lab.language.causal_model import Verbalized, load_causal
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.opt import SIZES, SPECIAL, build_opt
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import initialising
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective, Objective, RoundedObjective
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd
from decomfl_lab.storage.tables import table_beside

LENGTHS = (4, 6, 7, 8, 9, 11, 14, 17, 21, 28, 31)
"""Deciles 0, 10, ... 100 % of the number of tokens of SST-2's training prompts, GPT-2's vocabulary, at most 31."""
SMOLLM2 = "smollm2-135m"
RANDOM = (*SIZES, SMOLLM2)  # models that are initialised at random; the others are loaded
MU, ETA = 1e-3, 1e-6
_SEED = 1

Batch = tuple[Tensor, Tensor]  # prompts (n, T), left padded, in any order, and classes (n,)
Way = Callable[[], NDArray[np.float32]]
"""How a round can be done: a function that does one and returns the scalars, (m, P)."""


class InPlaceRound:
    """A round as MeZO and the authors' code do it: z is made for the moves to x + μz, x − μz and x, and for the update.

    Every client moves parameters of its own, a tensor at a time, and takes logits of the whole vocabulary at every
    position. (MeZO seeds torch's global generator; one of its own takes as long.)
    """

    def __init__(
        self, module: Verbalized, batches: Sequence[Batch], P: int, *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.modules = [deepcopy(module.module).to(dtype) for _ in batches]
        self.verbalizers, self.pad = list(module.verbalizers), module.pad
        self.batches, self.P = batches, P
        self.round = 0

    def __call__(self) -> NDArray[np.float32]:
        """See ``Way``."""
        seeds = range(self.round * self.P, (self.round + 1) * self.P)
        rows = []
        for module, batch in zip(self.modules, self.batches, strict=True):
            rows.append(in_place_scalars(module, partial(self._loss, module, *batch), seeds, MU))
        g = np.stack(rows)
        with torch.inference_mode():
            for module in self.modules:
                for p, seed in enumerate(seeds):
                    move_(module, seed, -ETA * float(g[:, p].mean()) / self.P)
        self.round += 1
        return g

    def _loss(self, module: nn.Module, ids: Tensor, classes: Tensor) -> float:
        """The mean cross-entropy of a batch over the verbalizers, cut to its longest prompt."""
        mask = (ids != self.pad).long()
        ids, mask = (part[:, int(mask.any(0).int().argmax()) :] for part in (ids, mask))
        logits = module(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return cross_entropy(logits[:, -1, self.verbalizers], classes).item()


class LlmFederation:
    """Clients and a server as ``decomfl train`` makes them, all clients sampled, plain SGD."""

    def __init__(self, module: Verbalized, batches: Sequence[Batch], P: int, way: str) -> None:
        rounded = way == "bfloat16"
        layout = Layout.of(module)
        x = layout.flatten(module)
        workspace = deepcopy(module).bfloat16() if rounded else deepcopy(module)
        workspace_layout = replace(layout, dtype=torch.bfloat16) if rounded else layout
        objectives = [_objective(workspace, workspace_layout, *batch) for batch in batches]
        measured: Sequence[Objective] = (
            [RoundedObjective(objective) for objective in objectives] if rounded else objectives
        )
        engine = make_engine("auto" if way == "auto" else "serial")
        self.clients = [
            Client(i, Replica(x, Sgd()), objective, central, MU, lean=way == "lean", engine=engine)
            for i, objective in enumerate(measured)
        ]
        m = len(batches)
        self.server = Server(M=m, m=m, K=1, P=Schedule(P), eta=Schedule(ETA), seed=_SEED)
        for client in self.clients:
            client.release()  # the workspace's own weights go

    def __call__(self) -> NDArray[np.float32]:
        """See ``Way``; clients first rebuild what the last round left."""
        plans = self.server.plan_round()
        replies = handle_all([self.clients[i] for i in plans], list(plans.values()))
        self.server.aggregate(replies)
        return np.stack([reply.scalars[0] for reply in sorted(replies, key=lambda reply: reply.client)])


def _objective(module: Verbalized, layout: Layout, ids: Tensor, classes: Tensor) -> ModuleObjective:
    """The loss on one batch, its prompts in order of length."""
    order = (ids != module.pad).sum(1).argsort(stable=True)
    batches = EpochBatches(len(ids), len(ids), (_SEED,), ascending=True)
    return ModuleObjective(module, layout, cross_entropy, ids[order], classes[order], batches)


def reference_scalars(module: Verbalized, batches: Sequence[Batch], P: int) -> NDArray[np.float32]:
    """The scalars of a ``LlmFederation``'s first round with the losses in float64, at the same points to the bit."""
    plan = LlmFederation(module, batches, P, "serial").server.plan_round()[0]
    line = WideLine(Replica(Layout.of(module).flatten(module), Sgd()), plan.seeds[0], plan.distribution)
    wide = deepcopy(module).double()
    tasks = [(_objective(wide, Layout.of(wide), *batch), 0) for batch in batches]
    values = Plain().losses(line, central.points(P, MU), tasks)
    return np.stack([central.combine(of_client, np.empty(0), MU).g for of_client in values])


def answering(model: str, vocabulary: int) -> Verbalized:
    """A model that answers with one of two tokens: initialised at random if its name is in ``RANDOM``, or loaded.

    Raises:
        InputError: If there is no such model, or the extra llm is missing.
    """
    if model == SMOLLM2:
        # A model of the form of HuggingFaceTB/SmolLM2-135M, with its own vocabulary.
        library = llm_library("transformers", f"model {SMOLLM2}")
        form = table_beside(__name__, "smollm2.toml")
        config = library.LlamaConfig(**form, pad_token_id=SPECIAL.index("<pad>"))
        with initialising(_SEED):
            module: nn.Module = library.LlamaForCausalLM(config)
        return Verbalized(module.eval(), _VERBALIZERS, SPECIAL.index("<pad>"))
    if model not in SIZES:
        causal = load_causal(model)
        return Verbalized(causal.module, _VERBALIZERS, causal.tokenizer.pad)
    tokenizer = SimpleNamespace(token_to_id=SPECIAL.index, get_vocab_size=lambda: vocabulary)
    return Verbalized(build_opt(SIZES[model], tokenizer, seed=_SEED), _VERBALIZERS, SPECIAL.index("<pad>"))


_VERBALIZERS = (len(SPECIAL), len(SPECIAL) + 1)


def random_prompts(n: int, *, vocabulary: int, pad: int, seed: int) -> Batch:
    """Prompts (n, 31) of random tokens whose lengths have the deciles ``LENGTHS``, in no order; random classes (n,)."""
    generator = torch.Generator().manual_seed(seed)
    shares = np.linspace(0, 1, len(LENGTHS))
    lengths = np.rint(np.interp((np.arange(n) + 0.5) / n, shares, LENGTHS)).astype(int)
    ids = torch.full((n, max(LENGTHS)), pad)
    for row, place in enumerate(torch.randperm(n, generator=generator).tolist()):
        length = int(lengths[place])
        ids[row, -length:] = torch.randint(len(SPECIAL), vocabulary, (length,), generator=generator)
    return ids, torch.randint(2, (n,), generator=generator)
