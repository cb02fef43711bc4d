"""``decomfl bench llm-round``: what its rows say, that all ways do the same round, and that a wrong one would show."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.llm_round import WAYS, LlmRoundOptions, LlmRoundRow, llm_round
from benchmarks.ways import language
from benchmarks.ways.language import ETA, LENGTHS, MU, InPlaceRound, LlmFederation, random_prompts
from benchmarks.ways.mezo import scalar_error
from decomfl_lab.cli.main import main
from decomfl_lab.language.causal_model import Verbalized
from tests.decomfl_lab.language.tiny import PAD, V, answers, save_opt, transformers

EXACT = ("serial", "auto", "lean")
SMALL = LlmRoundOptions(vocabulary=300, batch_size=5, clients=2, perturbations=2, repeats=1)


@pytest.fixture
def module() -> Verbalized:
    return answers("opt")


def batches(m: int) -> list[language.Batch]:
    return [random_prompts(6, vocabulary=V, pad=PAD, seed=i) for i in range(m)]


def test_prompts_are_as_long_as_those_of_sst2() -> None:
    ids, classes = random_prompts(1000, vocabulary=50, pad=1, seed=0)
    lengths = (ids != 1).sum(1)
    assert np.abs(np.quantile(lengths.numpy(), np.linspace(0.1, 0.9, 9)) - LENGTHS[1:-1]).max() <= 1
    assert (int(lengths.min()), int(lengths.max())) == (4, 31)
    assert not torch.equal(lengths, lengths.sort().values)
    assert torch.equal(ids[:, 1:] == 1, (ids[:, 1:] == 1) & (ids[:, :-1] == 1))  # on the left alone
    assert set(classes.tolist()) == {0, 1}
    assert ids.max() == 49


@pytest.mark.thorough
def test_every_way_measures_the_reference_to_its_rounding(module: Verbalized) -> None:
    reference = language.reference_scalars(module, batches(2), 3)
    assert reference.shape == (2, 3)
    for way in EXACT:
        assert scalar_error(LlmFederation(module, batches(2), 3, way)(), reference) < 1e-3
    assert scalar_error(LlmFederation(module, batches(2), 3, "bfloat16")(), reference) > 1e-2


@pytest.mark.thorough
def test_a_round_of_a_federation_is_followed_by_its_update(module: Verbalized) -> None:
    federations = [LlmFederation(module, batches(2), 2, way) for way in EXACT]
    for federation in federations:
        first, second = federation(), federation()
        assert not np.array_equal(first, second)
        assert [client.replica.round for client in federation.clients] == [1, 1]
    x = federations[0].clients[0].replica.x
    assert float((x - language.Layout.of(module).flatten(module)).abs().max()) > 0


def test_the_usual_way_measures_central_differences_and_takes_the_step(module: Verbalized) -> None:
    way = InPlaceRound(module, batches(2), 2, dtype=torch.float64)
    start = [w.detach().clone() for w in way.modules[0].parameters()]

    def loss(i: int, p: int, c: float) -> float:
        generator = torch.Generator().manual_seed(p)
        for w, w0 in zip(way.modules[i].parameters(), start, strict=True):
            w.data = w0 + c * torch.randn(w.shape, generator=generator).double()
        ids, classes = batches(2)[i]
        with torch.no_grad():
            logits = torch.stack([way.modules[i](row[row != PAD][None]).logits[0, -1, [7, 30]] for row in ids])
        for w, w0 in zip(way.modules[i].parameters(), start, strict=True):
            w.data = w0.clone()
        return float(cross_entropy(logits, classes))

    wanted = np.array([[(loss(i, p, MU) - loss(i, p, -MU)) / (2 * MU) for p in range(2)] for i in range(2)])
    assert way() == pytest.approx(wanted, rel=1e-5)
    moved = [w.detach() - w0 for w, w0 in zip(way.modules[1].parameters(), start, strict=True)]
    steps = [torch.zeros_like(w) for w in start]
    for p in range(2):
        generator = torch.Generator().manual_seed(p)
        for step in steps:
            step -= ETA / 2 * wanted[:, p].mean() * torch.randn(step.shape, generator=generator).double()
    for found, step in zip(moved, steps, strict=True):
        assert torch.allclose(found, step, rtol=1e-3, atol=1e-12)


@pytest.mark.thorough
def test_rows_hang_together() -> None:
    transformers()
    rows = list(llm_round.rows(SMALL))
    assert [row.way for row in rows] == list(WAYS)
    for row in rows:
        assert row.d == (300 + 256 + 4) * 48 + 3 * (12 * 48 * 48 + 13 * 48)
        assert row.ratio == pytest.approx(rows[0].seconds / row.seconds)
        assert row.scalar_error < (1e-3 if row.way != "bfloat16" else 1)


def test_the_command_prints_its_rows(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    folder = save_opt(tmp_path / "mine")  # type: ignore[operator]
    arguments = ["bench", "llm-round", "--batch-size", "2", "--perturbations", "1", "--repeats", "1"]
    assert main([*arguments, "--model", str(folder), "--way", "auto", "--json"]) == 0
    rows = [LlmRoundRow(**row) for row in json.loads(capsys.readouterr().out)["tables"][0]["rows"]]
    assert [(row.model, row.way, row.batch, row.threads) for row in rows] == [
        ("mine", "in place", 2, 1),
        ("mine", "auto", 2, 1),
    ]
    assert main([*arguments, "--vocabulary", "300", "--way", "auto"]) == 0
    assert "A round, m = 2: opt-0.3m" in capsys.readouterr().out
    for wrong, message in (
        (["--way", "fast"], "way must be one of in place, serial, auto, lean, bfloat16, got 'fast'"),
        (["--model", "opt-9t"], "model must be a folder"),
    ):
        assert main(["bench", "llm-round", *wrong]) == 2
        assert message in capsys.readouterr().err
