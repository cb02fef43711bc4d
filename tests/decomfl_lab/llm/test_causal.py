"""Causal models: the few logits are the many, whatever the architecture, the batch and the padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from decomfl_lab.errors import InputError
from decomfl_lab.llm.causal import Verbalized
from decomfl_lab.replica import Layout
from tests.decomfl_lab.llm.tiny import ARCHITECTURES, PAD, TIED, V, answers, prompts, tiny

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
