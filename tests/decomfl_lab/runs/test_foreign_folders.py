"""A stranger's folder, each file of it under a true checksum: what cannot be so is refused by name, nothing written."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab.cli.main import main
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE, looked_at, table_is_sound
from decomfl_lab.runs.run import Run, load_run
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.provenance import PROVENANCE_FILE
from tests.cases import refused, rows_of
from tests.decomfl_lab.runs.rewritten import rewritten
from tests.decomfl_lab.runs.variants import SMALL

PLAIN = SMALL.but(batch_size=8, perturbations=2)
SIZES = ("data", "model", "clients", "sampled", "rounds", "eval_every", "batch_size")
CONFIGS = {
    "decomfl": PLAIN,
    "revert": PLAIN.but(revert="sync", momentum=0.0, weight_decay=0.0),
    "weighted": PLAIN.but(weighting="examples"),
    "fedavg": TrainConfig("fedavg", **{name: getattr(PLAIN, name) for name in SIZES}),
    "mezo": PLAIN.but("mezo"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("made")
    for name, config in CONFIGS.items():
        Run(config).train(out=root / name)
    return {name: root / name for name in CONFIGS}


@pytest.fixture
def out(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the run of DeComFL."""
    return Path(shutil.copytree(made["decomfl"], tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put(values: Any, way: str, *value: Any) -> None:
    """Set a value by the way to it through mappings and lists, after whose end it is added; none takes it away."""
    *through, last = way.split(".")
    for name in through:
        values = values[int(name) if isinstance(values, list) else name]
    if isinstance(values, list):
        values[int(last) : int(last) + 1] = value
    elif value:
        values[last] = value[0]
    else:
        del values[last]


Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]
ROWS = rows_of(__file__)
NONSENSE: dict[str, Change] = {name: lambda _, v, at=at: put(v, *at) for name, *at in ROWS["nonsense"]}
NONSENSE["rows that go back"] = lambda _, v: v["rows"].reverse()
FORGED: dict[str, tuple[str, str, Change]] = {
    "x of another type": ("mezo", "x in the checkpoint", lambda t, _: t.update(x=t["x"].bool())),
    "x of another shape": ("fedavg", "x in the checkpoint", lambda t, _: t.update(x=t["x"][None])),
    "an x that is not of its log": ("decomfl", "must have the digest", lambda t, _: t.update(x=0 * t["x"])),
    "a momentum of NaN": (
        "decomfl",
        "be of numbers, got 'NaN'",
        lambda t, _: t.update({"state.momentum": t["state.momentum"] * torch.nan}),
    ),
    "a momentum of 16 bits": (
        "decomfl",
        "state.momentum in the checkpoint",
        lambda t, _: t.update({"state.momentum": t["state.momentum"].half()}),
    ),
    "a client's momentum of one number": (
        "fedavg",
        "momentum_buffer that a client keeps must be of shape",
        lambda t, _: t.update({"client.0.momentum_buffer": torch.ones(())}),
    ),
    "no ledger": ("fedavg", "ledger must be there", lambda _, v: put(v, "federation.ledger", None)),
    "bytes of 400 digits": ("mezo", "wire_bytes|rows", lambda _, v: put(v, "rows.1.wire_bytes", 10**400)),
    "no optimizers of clients": (
        "fedavg",
        "checkpoint must have what client . keeps from round to round",
        lambda t, v: [
            v["federation"].pop("states"),
            *(t.pop(each) for each in list(t) if each.startswith("client.")),
        ],
    ),
    "a renamed x": ("decomfl", "saved run must|in the checkpoint|without", lambda t, _: t.update(other=t.pop("x"))),
    "a state of another shape": (
        "decomfl",
        "saved run must|in the checkpoint",
        lambda t, _: t.update({slot: torch.zeros(5) for slot in t if slot.startswith("state.")}),
    ),
    "a decay of 400 digits": ("mezo", "a number of 64 bits", lambda _, v: put(v, "config.weight_decay", 10**400)),
    **{name: (of, told, lambda _, v, at=at: put(v, *at)) for name, of, told, *at in ROWS["forged"]},
}


def change_checkpoint(out: Path, change: Change) -> None:
    tensors, values = read_checkpoint(out / CHECKPOINT_FILE)
    tensors, values = dict(tensors), json.loads(json.dumps(values))
    change(tensors, values)
    write_checkpoint(out / CHECKPOINT_FILE, tensors, values)


@pytest.mark.parametrize("name", [CHECKPOINT_FILE, LOG_FILE, METRICS_FILE])
def test_a_flipped_bit_of_a_file_is_noticed_wherever_it_is(name: str, out: Path) -> None:
    path = out / name
    content = path.read_bytes()
    (out / CHECKPOINT_FILE).unlink()
    assert table_is_sound(out)
    for bit in range(0, 8 * len(content), 8 * len(content) // 700 | 1):  # an odd step meets all bits of a byte
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        if name == METRICS_FILE:
            assert not table_is_sound(out), bit
            continue
        with pytest.raises(lab.InputError, match=r"^(checkpoint|log|version of the log) .*(must|be) "):
            pytest.fail(f"bit {bit}: {read_checkpoint(path) if name == CHECKPOINT_FILE else RunLog.open(path)}")


@pytest.mark.parametrize("name", NONSENSE)
def test_a_checkpoint_that_tells_nonsense_is_refused_by_its_file_and_listed_as_damaged(
    name: str, out: Path, capsys: Any
) -> None:
    change_checkpoint(out, NONSENSE[name])
    with pytest.raises(lab.InputError, match=f"{out}"):
        load_run(out)
    assert looked_at(out).state == "damaged"
    assert main(["runs", str(out)]) == 0
    assert "damaged: " in capsys.readouterr().err


@pytest.mark.parametrize("name", FORGED)
def test_a_checkpoint_that_cannot_be_so_is_refused_and_the_folder_left_as_it_is(
    name: str, made: dict[str, Path], tmp_path: Path
) -> None:
    of, told, change = FORGED[name]
    out = Path(shutil.copytree(made[of], tmp_path / "run"))
    change_checkpoint(out, change)
    before = contents(out)
    looked_at(out)
    with pytest.raises(lab.InputError, match=told):
        load_run(out).more(2)
    assert contents(out) == before


def test_an_entry_of_a_log_that_cannot_be_so_is_refused_and_the_folder_left_as_it_is(out: Path) -> None:
    """One of those that every reader refuses (``tests/docs/hostile.json``)."""

    def of_nobody(entry: LogEntry) -> LogEntry:
        fields = {"sampled": (0, 9), "answered": (0, 9)} if entry.record.round == 1 else {}
        return dataclasses.replace(entry, **fields)

    rewritten(out, out / LOG_FILE, of_nobody)
    told = r"sampled clients of round 1 must be some of 0\.\.3"
    with pytest.raises(lab.InputError, match=told):
        lab.replay(out)
    (out / CHECKPOINT_FILE).unlink()
    before = contents(out)
    with pytest.raises(lab.InputError, match=told):
        Run(CONFIGS["decomfl"]).train(out=out)
    assert contents(out) == before


@pytest.mark.parametrize("header", [{"d": 2**40}, {"shape": [5]}, {"dtype": "int8"}])
@pytest.mark.parametrize("saved", [True, False])
def test_a_log_whose_header_is_of_another_model_is_not_gone_on_with(
    header: dict[str, Any], saved: bool, out: Path
) -> None:
    rewritten(out, out / LOG_FILE, **header, start={"by": "libraries"})
    if not saved:
        (out / CHECKPOINT_FILE).unlink()
    with pytest.raises(lab.InputError, match=f"{next(iter(header))} of {out}/run.dcl must be"):
        Run(CONFIGS["decomfl"].but(rounds=6)).train(out=out)


def test_a_run_that_begins_anew_does_not_replace_the_log_of_another(made: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(made["decomfl"] / LOG_FILE, tmp_path)
    with pytest.raises(lab.InputError, match="out must be empty or hold the same run"):
        Run(CONFIGS["revert"]).train(out=tmp_path)
    assert contents(tmp_path) == {LOG_FILE: (made["decomfl"] / LOG_FILE).read_bytes()}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", [CHECKPOINT_FILE, CONFIG_FILE, METRICS_FILE, PROVENANCE_FILE, LOG_FILE])
def test_a_file_without_an_end_is_not_waited_for(name: str, kind: str, out: Path, capsys: Any) -> None:
    (out / name).unlink()
    if name != CHECKPOINT_FILE:
        (out / CHECKPOINT_FILE).unlink()
    if kind == "pipe":
        os.mkfifo(out / name)
    else:
        (out / name).symlink_to("/dev/zero")
    assert main(["replay" if name == LOG_FILE else "runs", str(out)]) == (2 if name == LOG_FILE else 0)
    assert ("was changed" if name == PROVENANCE_FILE else "no plain file") in capsys.readouterr().err


DEEP = {CONFIG_FILE: "a = " + "[" * 5000, PROVENANCE_FILE: "[" * 100_000}


@pytest.mark.parametrize("name", DEEP)
def test_a_file_of_many_levels_is_refused(name: str, out: Path, capsys: Any) -> None:
    (out / CHECKPOINT_FILE).unlink()
    (out / name).write_text(DEEP[name])
    assert main(["runs", str(out)]) == 0
    if name == CONFIG_FILE:
        assert "config must be TOML of a few levels" in refused(capsys, "train", "--config", str(out / name))


def test_what_a_folder_says_is_shown_as_one_line(made: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    out = Path(shutil.copytree(made["decomfl"], tmp_path / "run\x1b[2K"))
    (out / CHECKPOINT_FILE).unlink()
    text = 'rounds = 4\nmodel = "m\\u001b[2K\\nFORGED"\nlr = "\\u001b[31m"\ndata = []\nmethod = []\n'
    (out / CONFIG_FILE).write_text(text)
    for sort in ("model", "method"):
        assert main(["runs", str(out), "--sort", sort]) == 0
        told = capsys.readouterr()
        assert "\x1b" not in told.out + told.err
        assert told.out.count("\n") == 2


@pytest.mark.parametrize("name", ["wire_bytes", "round"])
def test_counts_of_hundreds_of_digits_are_damage(name: str, out: Path, tmp_path: Path, capsys: Any) -> None:
    (out / CHECKPOINT_FILE).unlink()
    head, *rows = (out / METRICS_FILE).read_text().splitlines()
    cells = rows[-1].split(",")
    cells[head.split(",").index(name)] = "9" * 400
    (out / METRICS_FILE).write_text("\n".join([head, *rows[:-1], ",".join(cells)]))
    assert main(["runs", str(out)]) == 0
    assert f"damaged: {name} in {out}/metrics.csv must be a whole number" in capsys.readouterr().err
    assert main(["plot", str(out), "--out", str(tmp_path / "a.png")]) == 2


def test_a_link_to_itself_is_no_configuration_that_was_left(made: dict[str, Path], out: Path, tmp_path: Path) -> None:
    (out / CHECKPOINT_FILE).unlink()
    (out / CONFIG_FILE).unlink()
    (out / CONFIG_FILE).symlink_to(CONFIG_FILE)
    assert main(["train", "--config", str(made["decomfl"] / CONFIG_FILE), "--rounds", "6", "--out", str(out)]) == 0
    run = load_run(out)
    (tmp_path / LOG_FILE).symlink_to(LOG_FILE)
    run.save(tmp_path)
    assert lab.replay(tmp_path).agrees
