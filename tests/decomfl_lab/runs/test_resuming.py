"""Whatever interrupts a run, and whatever it leaves: it goes on to the bits of the run that nothing interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab import HookError, Run, TrainConfig
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE
from decomfl_lab.runs.run import load_run
from tests.cases import rows_of, sampled
from tests.decomfl_lab.runs.variants import OTHERS, SMALL, VARIANTS

BASE = SMALL.but(
    clients=6, sampled=3, rounds=7, eval_every=3, lr=0.01, mu=1e-3, momentum=0.0, weight_decay=0.0,
    perturbations=10, batch_size=2000, seed=3,
)  # fmt: skip
REACHED = 4
"""The round after which it is interrupted, which is no round of an evaluation."""


def _hook(act: Callable[[lab.Round], object]) -> list[Callable[[lab.Round], object]]:
    """A hook that acts in the round of the interruption."""
    return [lambda at: act(at) if at.round == REACHED else None]


def shorter(config: TrainConfig, out: Path) -> None:
    """A run of fewer rounds, which is prolonged."""
    Run(config.but(rounds=REACHED)).train(out=out)


def stopped(config: TrainConfig, out: Path) -> None:
    """A hook ends the run."""
    Run(config).train(out=out, hooks=_hook(lab.Round.stop))


def failed(config: TrainConfig, out: Path) -> None:
    """A hook fails."""
    with pytest.raises(HookError, match=f"saved in {out}"):
        Run(config).train(out=out, hooks=_hook(lambda at: at / 0))  # type: ignore[operator]


def saved(config: TrainConfig, out: Path) -> None:
    """A run without a folder, which is saved at last."""
    run = Run(config.but(rounds=REACHED))
    run.train()
    run.save(out)


def loaded(config: TrainConfig, out: Path) -> None:
    """It has been gone on with once, and saved in another folder too."""
    shorter(config, out.with_name("before"))
    load_run(out.with_name("before")).more(1).save(out)


def without_checkpoint(config: TrainConfig, out: Path) -> None:
    """The checkpoint is gone, so that the log has to give the rounds again, or all are played anew."""
    stopped(config, out)
    (out / CHECKPOINT_FILE).unlink()


def without_log(config: TrainConfig, out: Path) -> None:
    """The log is gone: the run goes on without one."""
    shorter(config, out)
    (out / LOG_FILE).unlink(missing_ok=True)


INTERRUPTIONS = (shorter, without_checkpoint, stopped, saved, failed, loaded, without_log)
WAYS: list[dict[str, Any]] = [*VARIANTS, *OTHERS, *rows_of(__file__)["more"]]


@pytest.mark.parametrize(
    ("changes", "interrupted"),
    [
        *(({"method": name}, INTERRUPTIONS[n % len(INTERRUPTIONS)]) for n, name in enumerate(METHODS)),
        *sampled([(way, each) for way in WAYS for each in INTERRUPTIONS], 24),
    ],
)
def test_a_run_goes_on_to_the_bit(
    changes: dict[str, Any], interrupted: Callable[[TrainConfig, Path], None], tmp_path: Path
) -> None:
    config, out = BASE.but(**changes), tmp_path / "parts"
    run = Run(config)
    whole = run.train(out=tmp_path / "whole")
    if not config.method.plain().get("attackers"):
        assert whole["train_loss"].iloc[-1] < whole["train_loss"].iloc[0]
    interrupted(config, out)
    resumed = Run(config).train(out=out)
    for column in whole.columns.drop("seconds"):
        assert whole[column].equals(resumed[column]), column  # NaN, too, where a round has no such number
    again = load_run(out)
    assert again.config == config
    assert torch.equal(again.federation.x, run.federation.x)
    if not config.method.drifts:  # clients that drift are exact up to rounding alone
        assert again.verify()
    logs = [folder / LOG_FILE for folder in (tmp_path / "whole", out)]
    by_records = run.federation.by_records is not None
    assert [log.exists() for log in logs] == [by_records, by_records and interrupted != without_log]
    if logs[1].exists():
        entries = []
        for path in logs:
            with RunLog.open(path, write=False) as log:
                entries.append([entry.record for entry in log.entries()])
        assert entries[0] == entries[1]
        # The log alone gives the model, and its clients measure what it has.
        measured = () if config.method.drifts else range(config.rounds)
        found = lab.replay(out, measure=measured)
        assert (found.agrees, found.digest) == (True, run.federation.observer.digest())  # type: ignore[attr-defined]
        assert [each.difference for each in found.measured] == [0.0] * len(measured)
        alone = lab.replay(logs[1])
        assert (alone.agrees, alone.digest) == (True, found.digest)
        for one, other in zip(alone.model.parameters(), again.model.parameters(), strict=True):
            assert torch.equal(one, other)
