"""Files that an earlier version wrote are replayed, gone on with and read; README.txt says how each was made."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import decomfl_lab as lab
import hessian
from decomfl_lab.optim import MeZO
from decomfl_lab.protocol.log import RunLog, beginning
from decomfl_lab.runs.configuration import config_from_mapping, read_config
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE
from decomfl_lab.storage.checkpoint_file import read_checkpoint

OLD = Path(__file__).parent
RUNS = sorted(path.parent.name for path in OLD.glob(f"*/{CHECKPOINT_FILE}"))


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_read_replayed_and_goes_on(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(OLD / name, folder)
    run, before = lab.load(folder), read_checkpoint(folder / CHECKPOINT_FILE)[0]
    assert run.metrics.equals(pd.read_csv(OLD / name / METRICS_FILE))
    log = folder / LOG_FILE
    if log.exists():
        replayed = lab.replay(log)
        assert replayed.agrees, replayed
        assert all(map(torch.equal, replayed.model.parameters(), run.model.parameters()))
    else:
        assert name == "fedavg-adam"  # whose models travel
        assert torch.equal(run.federation.x, before["x"])
    run.more(2, any_code=True)
    again = lab.load(folder)
    assert (again.round, len(again.metrics)) == (8, 3)
    assert torch.equal(again.federation.x, run.federation.x)
    assert not torch.equal(again.federation.x, before["x"])
    if log.exists():
        assert lab.replay(log).agrees
        with RunLog.open(OLD / name / LOG_FILE, write=False) as old, RunLog.open(log, write=False) as new:
            assert len(new) == 8
            assert list(new.entries(0, len(old))) == list(old.entries())


SAID = {
    "fedavg-adam": ("27b18e4b39ebb957d2fb16bcbf26c9c2", "c980ebaf1e186551", "8f61dce1288ec13c7eb448aa7a32f1c2"),
    "fedkseed": ("fa5a2f84487036611ee14fdee1d540ce", "df177761e9066000", "3ed584147d477b2a28fe2cbfc672e4b9"),
    "hiso": ("7d1fdbc6175b735b0100e37c0a9f5a76", "830d29d3acf227fc", "7dec94f50dc9a49b806eaa376cc0cfe8"),
    "joiners": ("4b2e79f8857b4e174ecd44360640a481", "4916e9b6d3b37621", "3b3dab78ad8aa920334a1e7bcd41649a"),
    "momentum": ("4b2e79f8857b4e174ecd44360640a481", "239ae52aff11f3cb", "3b3dab78ad8aa920334a1e7bcd41649a"),
}
"""Of each folder: identity and fingerprint of its run, and the identity with whole numbers for two that are not."""


@pytest.mark.parametrize("name", RUNS)
def test_an_old_configuration_has_the_identity_the_fingerprint_and_the_header_that_it_had(name: str) -> None:
    values = read_config(OLD / name / CONFIG_FILE)
    config, whole = (config_from_mapping(each, name, lenient=True) for each in (values, values | {"lr": 1, "alpha": 2}))
    found = config.identity("x").hex(), config.fingerprint(data="d", code="c"), whole.identity("x").hex()
    assert found == SAID[name]
    assert whole == config.but(lr=1.0, alpha=2.0)
    assert config.but(lr=1).identity("x") != config.but(lr=1.0).identity("x")  # so files have to be read as above
    if (path := OLD / name / LOG_FILE).exists():
        with RunLog.open(path, write=False) as log:
            said = json.dumps(config.to_dict() | {"rank": 1}, sort_keys=True)  # 1 and 1.0 are not the same text
            assert json.dumps(log.header["config"], sort_keys=True) == said
            begin = beginning(log.version, log.header, log.start)
        assert path.read_bytes().startswith(begin)


def test_an_old_log_of_mezo_is_replayed_and_goes_on(tmp_path: Path) -> None:
    log = shutil.copy(OLD / "mezo.dcl", tmp_path / "mezo.dcl")
    saved = torch.load(OLD / "mezo.pt")
    model, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), torch.linspace(-1, 1, 40).view(8, 5)
    model.load_state_dict(saved["model"])

    def same_as_replayed() -> bool:
        found = lab.replay(log, model)
        return found.agrees and all(map(torch.equal, found.model.parameters(), model.parameters()))

    assert same_as_replayed()
    optimizer = MeZO(model.named_parameters(), 0.05, log=log, digest_every=2, log_start=True)
    optimizer.load_state_dict(saved["optimizer"])
    for _ in range(2):
        optimizer.step(lambda: model(x).square().mean())
    assert not any(map(torch.equal, model.parameters(), saved["model"].values()))
    assert same_as_replayed()


def test_an_old_checkpoint_of_kappa_spares_its_products(tmp_path: Path) -> None:
    eigenvalues = torch.ones(150, dtype=torch.float64)
    eigenvalues[:40] = -0.5
    eigenvalues[:5] = torch.tensor([64.0, 32, 16, 8, 4])
    spent: list[int] = []

    def product(v: Tensor) -> Tensor:
        spent.append(1)
        return eigenvalues * v

    found, whole = (
        hessian.effective_rank(
            hessian.as_operator(product, d=150, dtype="float64", trust=True), products=60, checkpoint=path
        )
        for path in (Path(shutil.copy(OLD / "kappa.safetensors", tmp_path)), None)
    )
    assert (found.kappa, *found.interval) == pytest.approx((whole.kappa, *whole.interval), rel=1e-12)
    assert found.products == whole.products == 60
    assert len(spent) < 60 + 35  # 30 of the first one's were in the file


def test_an_old_log_of_low_rank_is_refused_in_a_line_that_names_the_version_which_has_it() -> None:
    told = r"rank in log .*low-rank\.dcl must be 1, as only version 0\.1 of decomfl-lab has low-rank directions, got 2$"
    with pytest.raises(lab.InputError, match=told):
        lab.replay(OLD / "low-rank.dcl")
