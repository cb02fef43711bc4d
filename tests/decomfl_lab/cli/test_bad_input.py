"""Bad input to any command is one line that names the argument, the rule and the value; nothing is begun or written."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decomfl_lab.cli.main import main
from decomfl_lab.errors import MOST_OPERATIONS, InputError, require_int, require_possible
from decomfl_lab.runs import preparation
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.files import require_writable
from tests.cases import refused, rows_of

HUGE, LONG = str(2**70), "1" * 5000
RUN = "train --data digits --model logistic"
WORDS = {
    "HUGE": HUGE,
    "LONG": LONG,
    "X": "x" * 5000,
    "RUN": RUN,
    "SERVE": "serve --data digits --model logistic --clients 2 --sampled 2",
    "SIX": f"{RUN} --clients 6 --sampled 2 --rounds 4",
    "THEOREM_2": "--theorem 2 --d 1e9 --kappa 50 --m 10 --P 10 --L 2 --eta 0.01",
    "EXAMPLE": str(Path(__file__).parents[3] / "examples" / "my_bound.py"),
}
"""What stands in the table of lines for something longer."""
CASES = [tuple(said.format(**WORDS) for said in row) for row in rows_of(__file__)["refused"]]


@pytest.fixture
def folder(here: Path) -> Path:
    """The present folder, with files of all sorts."""
    (here / "folder").mkdir()
    code = "import sys, torch\nexits = sys.exit\ndef net(): return torch.nn.Linear(3, 2)\n"
    code += "def stops(outputs, targets): sys.exit(0)\n"
    code += "def f(): return [(torch.ones(4, 3), torch.zeros(4).long())], (torch.ones(4, 3), torch.zeros(4).long())\n"
    texts = {"exits.py": "raise SystemExit(0)", "mine.py": code}
    texts |= {
        "file": "",
        "key.toml": "learning_rate = 0.1\n",
        "twice.toml": "rounds=1\nrounds=2",
        "digits.toml": f"seed={LONG}",
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    (here / "binary").write_bytes(bytes(range(256)))
    return here


def _files(folder: Path) -> list[Path]:
    """What is in a folder, but for what Python has compiled of a user's code."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize(("argv", "message"), CASES, ids=[argv[:60] for argv, _ in CASES])
def test_bad_input_is_one_line_before_anything_is_begun_or_written(
    argv: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = _files(folder)
    told = refused(capsys, *argv.split(" "))
    assert message in told
    assert len(told.partition(" names, got ")[0]) < 600  # a list of all names is as long as it is
    assert _files(folder) == there


TEXTS = st.text() | st.floats().map(str) | st.integers().map(str) | st.sampled_from([HUGE, LONG, "٣", "1e400", "-0"])


NUMBERS = "--rounds --clients --sampled --batch-size --local-steps --perturbations --lr --mu --momentum --grid --seed"


@given(option=st.sampled_from(NUMBERS.split()), text=TEXTS)
@example("--lr", "1e-320")
@settings(max_examples=15)
def test_no_number_makes_a_run_fail_otherwise_than_in_a_line(option: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        loaded = InputError("here the data are loaded")
        patch.setattr(preparation.Materials, "dataset", lambda *_: (_ for _ in ()).throw(loaded))
        assert main(["train", option, text]) == 2


def test_what_fits_is_possible_and_a_little_more_is_refused_with_the_estimate() -> None:
    require_possible("d", 1, operations=MOST_OPERATIONS, memory=1)
    with pytest.raises(InputError, match=r"^d must ask for .* \(this takes 1e\+15 or more\), got 1$"):
        require_possible("d", 1, operations=1.001 * MOST_OPERATIONS)
    with pytest.raises(InputError, match=r"^d must fit into the \d+ GB of memory here \(this takes 1000000000 GB"):
        require_possible("d", 1, memory=1e18)


def test_whole_numbers_fit_64_bits() -> None:
    assert require_int("K", 2**63 - 1, 0) == 2**63 - 1
    with pytest.raises(InputError, match=r"^K must be an integer in 0\.\.9223372036854775807, got 92233720368547758"):
        require_int("K", 2**63, 0)
    with pytest.raises(InputError, match="got int with an integer of thousands of digits"):
        require_int("K", 10**5000, 0)


def test_trying_a_file_leaves_nothing_and_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    require_writable("csv", tmp_path / "old")
    require_writable("csv", tmp_path / "new" / "folder" / "file")
    with pytest.raises(InputError, match="csv must be a file that can be written, got .* \\(Not a directory\\)"):
        require_writable("csv", tmp_path / "old" / "file")
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_checkpoint_with_a_renamed_key_is_named_and_what_it_lacks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "file", {}, {"outer": {"renamed": 1}})
    tensors, values = read_checkpoint(tmp_path / "file")
    for found, name in ((tensors, "x"), (values, "run"), (values["outer"], "round")):
        with pytest.raises(InputError, match=f"checkpoint must have '{name}' in it, got .*file without"):
            found[name]
