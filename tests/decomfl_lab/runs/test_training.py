"""Runs: repeatable from one seed, and resumable bit for bit."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import decomfl_lab as lab
from decomfl_lab import DivergedError, InputError, Run, TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.progress import Progress
from decomfl_lab.runs import messages
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, METRICS
from decomfl_lab.runs.preparation import Prepared
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from tests.decomfl_lab.runs.variants import SMALL

TINY = SMALL.but(
    clients=6, rounds=8, local_steps=3, perturbations=4, lr=0.01, batch_size=16, eval_every=3,
    lr_schedule={4: 0.005}, perturbation_schedule={5: 2},
)  # fmt: skip
FEDAVG = TINY.but("fedavg", lr=0.1, momentum=0.5)


def _without_time(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="seconds").reset_index(drop=True)


def test_every_evaluation_has_the_norm_of_the_model() -> None:
    norms: dict[int, float] = {}

    def note(at: Progress) -> None:
        norms[at.round] = sum(float(value) ** 2 for value in own.federation.x.tolist()) ** 0.5

    own = Run(TINY)
    own.train(on_round=note)
    assert own.metrics.norm.tolist() == pytest.approx([norms[r] for r in own.metrics["round"]], rel=1e-12)
    assert len({*own.metrics.norm}) == len(own.metrics) > 2


def test_a_run_of_a_version_whose_clients_kept_nothing_is_opened_and_goes_on_as_it_began(tmp_path: Path) -> None:
    fresh = FEDAVG.but(optimizer_state="fresh")
    Run(replace(fresh, rounds=6)).train(out=tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    tensors, values = read_checkpoint(path)
    del values["federation"]["states"], values["config"]["optimizer_state"]
    write_checkpoint(path, tensors, dict(values))
    written = tmp_path / CONFIG_FILE
    written.write_text(re.sub("optimizer_state.*\n", "", written.read_text(encoding="utf-8")), encoding="utf-8")
    assert lab.load(tmp_path).round == 6
    with pytest.raises(InputError, match="differs in optimizer_state"):
        Run(FEDAVG).train(out=tmp_path)
    pd.testing.assert_frame_equal(_without_time(Run(fresh).train(out=tmp_path)), _without_time(Run(fresh).train()))


def test_the_first_evaluation_can_come_earlier_than_the_others() -> None:
    assert Run(TINY.but(eval_first=1)).train().loc[:, "round"].tolist() == [1, 4, 7, 8]
    with pytest.raises(InputError, match=r"eval_first must be an integer in 0\.\.3, got 4"):
        TINY.but(eval_first=4)


def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    Run(TINY).train(out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="out must be empty or hold the same run"):
        Run(replace(TINY, lr=0.02)).train(out=tmp_path)
    with pytest.raises(InputError, match="rounds must be at least the 8 of the run"):
        Run(replace(TINY, rounds=7)).train(out=tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_loss_that_rose_is_warned_of_at_the_rate_of_the_last_round(caplog: pytest.LogCaptureFixture) -> None:
    rates = {1: 2.0, 2: 3.0, 3: 4.0}
    Run(replace(TINY, lr=5.0, lr_schedule=rates, rounds=3, local_steps=1, mu=0.01)).train()
    (told,) = [said for said in caplog.messages if "the training loss ended at" in said]
    assert told.endswith("at lr = 3; try lr = 0.3")


@pytest.mark.parametrize("changes", [{}, {"rebuild": "copy"}, {"history": 2}])
def test_every_client_rebuilds_the_global_model(changes: dict[str, Any]) -> None:
    more = {"server_model": True} if "history" in changes else {}
    config = replace(TINY, rounds=5, local_steps=2, **changes, **more)
    run = Run(config)
    run.train()
    assert run.verify()
    federation = run.federation.by_records
    digests = federation.rebuilt()
    reach = [i for i, c in enumerate(federation.clients) if c.replica.round >= federation.server.history.start]
    assert list(digests) == reach
    assert set(digests.values()) == {federation.observer.digest()}
    lagging = federation.base or federation.clients[reach[0]].replica
    lagging.own()
    lagging.x[-1] += 1e-3  # one number of one client, or of the model that stands for all
    wrong = [i for i, digest in federation.rebuilt().items() if digest != federation.observer.digest()]
    assert wrong == (reach if federation.base else reach[:1])
    assert (bool(run.verify()), run.verify().equal) == (False, len(reach) - len(wrong))


def test_a_run_that_diverges_says_so_and_keeps_its_rows(tmp_path: Path) -> None:
    decay = {"lr": 300.0, "weight_decay": 1.0}  # x grows by a factor of 299 a round
    config = TrainConfig(data="digits", model="mlp", clients=4, sampled=2, rounds=400, eval_every=1, **decay)  # type: ignore[arg-type]
    told = (
        r"scalars of client \d must be finite: training diverged in round \d+ at lr = 300; try lr = 30; the rounds bef"
    )
    with pytest.raises(DivergedError, match=told) as diverged:
        Run(config).train(out=tmp_path)
    rows = pd.read_csv(tmp_path / "metrics.csv")
    assert len(diverged.value.run.metrics) == len(rows)
    assert tuple(rows.columns) == METRICS
    assert 0 < len(rows) < 400
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"private_seeds": True, "seeds": "per-run", "tracking": "clients", "momentum": 0.0},
        {"server_model": True, "history": 2, "local_steps": 3, "distribution": "sphere", "precision": "bfloat16"},
    ],
)
def test_copied_replicas_are_the_replayed_ones(changes: dict[str, Any], tmp_path: Path) -> None:
    base = TrainConfig(data="digits", model="mlp", clients=6, sampled=2, rounds=9, eval_every=3, batch_size=8)
    tables, digests = [], []
    for rebuild in ("replay", "copy"):
        config = replace(base, rebuild=rebuild, **changes)
        tables.append(Run(config).train().drop(columns="seconds"))
        federation = Prepared.of(config, load_dataset("digits")).federation()
        assert isinstance(federation, DeComFLFederation)
        for _ in range(7):
            federation.advance()
        digests.append((federation.observer.digest(), federation.rebuilt(), federation.save()[1].base))
        assert {c.replica.round for c in federation.clients} > {6}
    pd.testing.assert_frame_equal(*tables)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (lab.DeComFL(lr=0.1), "the first round, at lr = 0.1; try lr = 0.01"),
        (
            lab.DeComFL(attack="scaled", attackers=2),
            "with 2 attackers (scaled) and --aggregation mean; try another --aggregation (docs/robust.md)",
        ),
        (lab.FedAvg(server_optimizer="yogi"), "with server_optimizer yogi at --server-lr 1; try --server-lr 0.1"),
    ],
)
def test_a_loss_that_rose_is_told_with_what_made_it_rise(
    method: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    messages.warn_if_risen(1.0, 9.0, method, 0.1)
    assert not caplog.messages
    messages.warn_if_risen(1.0, 11.0, method, 0.1)
    assert [message.endswith(says) for message in caplog.messages] == [True]
