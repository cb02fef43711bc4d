"""Bad input to any command is one line that names the argument, the rule and the value; nothing is begun or written."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.cli.main import main
from decomfl_lab.errors import MOST_OPERATIONS, InputError, require_int, require_possible
from decomfl_lab.files import require_writable
from decomfl_lab.runs import building
from tests.decomfl_lab.cli.test_screens import EVERY
from tests.refusals import refused

HUGE, LONG = str(2**70), "1" * 5000
RUN = "train --data digits --model logistic"
SERVE = "serve --data digits --model logistic --clients 2 --sampled 2"
SIX = f"{RUN} --clients 6 --sampled 2 --rounds 4"
THEOREM_2 = "--theorem 2 --d 1e9 --kappa 50 --m 10 --P 10 --L 2 --eta 0.01"
EXAMPLE = Path(__file__).parents[3] / "examples" / "my_bound.py"
CASES = [
    (f"{RUN} --threads 100000", "threads must be an integer in 1..1024, got 100000"),
    (f"{RUN} --rounds 1{'0' * 20}", "rounds R must be an integer in 1..9223372036854775807, got 1"),
    (f"{RUN} --rounds 1000000000000", "rounds R, sampled m, local_steps K and perturbations P must ask for at most"),
    (f"{RUN} --local-steps 1000000000000", "K and P must be 1 to 65535 on the wire, got (1000000000000, 20)"),
    (f"{RUN} --perturbations {HUGE}", "perturbations P must be an integer in 1.."),
    (f"{RUN} --batch-size {HUGE}", "batch_size B must be an integer in 1.."),
    (f"{RUN} --rounds {LONG}", "Invalid value for '--rounds'"),
    (f"{RUN} --seed -1", "seed must be an integer in 0..18446744073709551615, got -1"),
    (f"{RUN} --lr nan", "lr η must be a finite number above 0, got nan"),
    (f"{RUN} --lr 1e400", "lr η must be a finite number above 0, got inf"),
    (f"{RUN} --lr-schedule ,", "lr_schedule must be ROUND=VALUE pieces joined by commas, got ''"),
    (f"{RUN} --beta2 nan", "beta2 must be left out with Momentum("),
    (f"{RUN} --rule sign --momentum 0.5", "momentum must be left out with SignSgd("),
    (f"{RUN} --clip -1", "clip must be left out with Mean("),
    (f"{RUN} --out /proc/x", "out must be a folder that can be written, got /proc/x (No such file or directory)"),
    (f"{RUN} --out file", "out must be a folder that can be written, got file (File exists)"),
    (f"{RUN} --out ", "--out must not be empty, got ''"),
    ("verify --cases 1000000000000", "cases must ask for at most 1e+15 operations"),
    (f"{RUN} --data a\0b", "--data must have no NUL character"),
    ("train --config folder", "config must be a readable TOML file, got folder (Is a directory)"),
    ("train --config twice.toml", "config must be valid TOML, got twice.toml"),
    ("train --config digits.toml", "config must be valid TOML, got digits.toml"),
    ("train --config binary", "config must be valid TOML, got binary"),
    ("train --config list.toml", "lr in config list.toml must be of type float, got [1]"),
    ("train --config key.toml", ", got 'learning_rate'"),
    ("noise --key xyz", "key must be a hexadecimal number of at most 16 digits, got 'xyz'"),
    (f"noise --first {HUGE}", "first must be an integer in 0..9223372036854775807, got 1180591620717411303424"),
    ("noise --count 100000000000000", "count must ask for at most 1e+15 operations"),
    ("noise --count 1000000000000 --json", "count must fit into the"),
    ("noise --distribution sphere --d 1000000000000000", "d must ask for at most 1e+15 operations"),
    ("noise --direction -1", "direction must be an integer in 0..4294967295, got -1"),
    ("noise --distribution low-rank", "rademacher, as only version 0.1 of decomfl-lab has low-rank directions, got"),
    ("bound --theorem 2 --L 1 --kappa 5 --d 1e308", "d must be an integer in 1.."),
    (f"bound --theorem {LONG}", "Invalid value for '--theorem'"),
    ("bound --statement variance --L 1 --d 9 --a nan", "a must be a finite number of at least 0, got nan"),
    ("bound --theorem 1 --L 1 --d 9 --a 1", "a must be left out for a statement without it, got 1.0"),
    ("stepsize --theorem 1 --L 1 --d 9 --sigma inf", "sigma must be a finite number of at least 0, got inf"),
    ("check theorem-1 --effort 1000000000000", "effort must ask for at most 1e+15 operations"),
    ("certificates certs --clients 1000000000000", "clients M must be an integer in 1..100000, got 1000000000000"),
    ("certificates certs --clients 0", "clients M must be an integer in 1..100000, got 0"),
    ("certificates certs --host a/b", "host must be a name or an IP address, got 'a/b'"),
    ("certificates certs --days 0", "days must be an integer in 1..36500, got 0"),
    ("certificates /proc/x", "DIR must be a folder that can be written, got /proc/x (No such file or directory)"),
    ("replay nowhere --measure 1,two", "measure must be rounds joined by commas, got '1,two'"),
    ("replay nowhere --save /proc/x", "save must be a file that can be written, got '/proc/x' (No such file"),
    ("bench rebuild --d 1e14 --pairs 1", "d must fit into the"),
    ("bench rebuild --d 9 --pairs 1e15", "d and pairs must ask for at most 1e+15 operations"),
    ("bench round --repeats 1000000000000", "batch, clients, P and repeats must ask for at most 1e+15 operations"),
    (f"kappa {'x' * 5000}", "(File name too long)"),
    (f"train --data {'x' * 5000}:f", "data must be module:function that can be imported, got 'xxx"),
    (f"train --config {'x' * 5000}", "config must be a readable TOML file, got xxx"),
    (f"verify --target {'x' * 5000}.py:f", "target must be module:function that can be imported, got 'xxx"),
    (f"certificates {'x' * 5000}", "DIR must be a folder that can be written, got xxx"),
    (f"{RUN} --lr-schedule {'x' * 5000}", "lr_schedule must be ROUND=VALUE pieces joined by commas, got 'xxx"),
    ("train --data sys:exit", "data must run without an error, got 'sys:exit' (SystemExit: )"),
    ("train --data exits.py:f", "that can be imported, got 'exits.py:f' (SystemExit: 0, exits.py line 1)"),
    ("train --data mine.py:f --model mine.py:exits", "run without an error, got 'mine.py:exits' (SystemExit"),
    ("train --data mine.py:f --model mine.py:net --loss mine.py:stops", "must take the examples of"),
    # train
    (f"{SIX} --sampled 7", "sampled clients m (of M=6) must be an integer in 1..6, got 7"),
    (f"{SIX} --local-steps 0", "local_steps K must be an integer of at least 1, got 0"),
    (f"{SIX} --perturbations 0", "perturbations P must be an integer of at least 1, got 0"),
    (f"{SIX} --mu 0", "mu μ must be a finite number above 0, got 0"),
    (f"{SIX} --momentum 1", "momentum β must be in [0, 1), got 1.0"),
    (f"{SIX} --data imagenet", "digits, text, module:function, FILE.py:function, got 'imagenet'"),
    (f"{SIX} --model vgg", "resnet20, resnet20-bn, mlp, logistic, gpt-tiny, gpt-tiny-tied, gpt-10m, got 'vgg'"),
    (f"{SIX} --method magic", "method must be one of decomfl, decomfl-projection, hiso, fzoo,"),
    (f"{SIX} --estimator backward", "estimator must be one of forward, central, got 'backward'"),
    ("train --log-to mlflow:x", "log_to must be one of tensorboard, wandb, got 'mlflow'"),
    ("train --log-to wandb", "log_to must say where to, as wandb:runs, got 'wandb'"),
    ("train --log-to wandb:", "log_to must say where to, as wandb:runs, got 'wandb:'"),
    (f"{RUN} --rounds 3 --perturbations 65536", "K and P must be 1 to 65535 on the wire, got (1, 65536)"),
    (f"{RUN} --rounds 3 --local-steps 60000 --perturbations 60000", "K·P must be at most"),
    (
        f"{RUN} --rounds 3 --mu 1e38",
        "before any step: a loss is no finite number at x_0 or mu = 1e+38 from it; try a smaller mu",
    ),
    (f"{RUN} --method feedsign --rounds 3 --mu 1e38", "try a smaller mu"),
    (f"{SIX} --clients 2000 --sampled 1", "clients M must be at most the 1397 training examples"),
    (f"{SIX} --perturbation-schedule 0=3", "round in perturbation_schedule must be an integer of at least 1, got 0"),
    (f"{SIX} --learning-rate 1", "No such option '--learning-rate'. Did you mean '--lr'?"),
    (f"{SIX} -K 2", "No such option '-K'. Did you mean '--local-steps'?"),
    (
        f"{SIX} --method fedavg --P 2",
        "perturbations must be left out for fedavg, which has no such option (decomfl train fedavg --help)",
    ),
    (f"{SIX} --aggregation krum --tolerated 2", "sampled clients m must be at least 7 for Krum(tolerated=2), got 2"),
    (f"{SIX} --aggregation clipped --clip -1", "clip c must be a finite number of at least 0, got -1.0"),
    (f"{SIX} --aggregation medain", "must be one of mean, clipped, median, trimmed, krum, got 'medain'"),
    (f"{SIX} --lr automatic", "'automatic' is not a valid float"),
    (f"{SIX} --federation spark", "federation must be one of in-process, ray, got 'spark'"),
    (f"{SIX} --workers 2", "workers must be left out for federation in-process, got 2"),
    (f"{SIX} --federation ray --workers 0", "workers must be an integer of at least 1, got 0"),
    ("train --data mine.py:f --model mine.py:net --sampled 4", "m (of M=1) must be an integer in 1..1, got 4"),
    ("paper --out file/o", "out must be a folder that can be written"),
    (
        f"{SIX} --alpha 0.1",
        "alpha must be left out with split iid, which has no use for it (--split dirichlet or dirichlet-total), "
        "got 0.1",
    ),
    (f"{SIX} --lora-rank 4", "lora_rank must be left out with tune full, which has no use for it (--tune lora), got"),
    # other commands
    ("paper --scale huge", "scale must be one of smoke, default, full, got 'huge'"),
    ("paper --only fig9", "table1, llm, smollm2, board, memory, hessian, sizes, theory, audit, got 'fig9'"),
    ("paper --count miles", "count must be one of wire, table1, plotted, got 'miles'"),
    ("paper --reading aloud", "reading must be one of as-plotted, as-written, both, got 'aloud'"),
    ("paper --scale smoke --set fig2.M=9 --from-recorded", "--set must be left out with --from-recorded"),
    ("paper --scale smoke --set fig2.M=9 --record kept", "--set must be left out with --record"),
    ("paper --scale smoke --set fig2.M=9 --only fig3", "--set must change a part that is made"),
    ("paper --only ,", "only must have names, joined by ',', got ','"),
    ("paper --only ", "--only must not be empty, got ''"),
    ("paper --scale smoke --only fig2 --from-recorded", "--only must name a part that is recorded at scale smoke, got"),
    ("paper --record /proc/x", "--record must be a file that can be written"),
    ("paper --runs /proc/x", "--runs must be a file that can be written"),
    ("paper --jobs 99999999999", "jobs must be an integer in 0..4096"),
    ("paper --reference /nowhere", "reference must be a folder with a readable authors_curves.csv"),
    ("verify --plant bug", "fault must be one of 103 names, got 'bug': revert-forgotten"),
    ("verify --target mine:Mine --plant all --device cpu", "plant must be left out where device is given, got 'all'"),
    (
        "verify --update mine:Mine --target mine:Mine",
        "target must be left out with update and identity, got 'mine:Mine'",
    ),
    ("verify --tolerance 0.1", "tolerance must come with update, got 0.1"),
    ("verify --identity nowhere.jsonl", "identity must be a file of JSON lines, got 'nowhere.jsonl'"),
    ("verify --cases 0", "cases must be an integer of at least 1, got 0"),
    ("verify --law gravity", "law must be one of"),
    ("verfy", "No such command 'verfy'. Did you mean 'verify'?"),
    # serve and join
    (SERVE, "out must be a folder, where the run is kept"),
    (f"{SERVE} --out run --bind 0.0.0.0:8470", "bind must be of loopback"),
    (f"{SERVE} --out run --bind nowhere", "bind must be HOST:PORT, as 127.0.0.1:8470, got 'nowhere'"),
    (f"{SERVE} --out run --certificates run/none", "certificates must have a readable ca.crt"),
    ("serve fedavg --perturbations 3 --out run", "perturbations must be left out for fedavg"),
    (
        "serve fedavg --data digits --model logistic --out run",
        "method must be one of decomfl, decomfl-projection, hiso, fzoo, feedsign, fedkseed where",
    ),
    ("join 127.0.0.1:1 --client 0", "--key or --certificates must be given, one of the two, got 'neither'"),
    ("join 127.0.0.1:1 --client 0 --key none", "key must be a readable file"),
    ("join 127.0.0.1:1 --client -1 --key none", "client must be an integer of at least 0"),
    # runs, plot and export
    ("runs nowhere", "error: folder must be a folder that exists, got 'nowhere'"),
    ("runs --sort colour", "error: sort must be one of folder, method, data"),
    ("plot nowhere", "error: folder must be a folder that exists, got 'nowhere'"),
    ("plot .", "error: runs must be folders with runs that have rows, got '.'"),
    ("plot . --out c.txt", "error: out must end in one of "),
    ("export nowhere m.safetensors", "error: folder must be one in which a run was saved, got 'nowhere'"),
    ("export nowhere no/m.safetensors", "error: out must be in a folder that exists"),
    # bench and noise
    ("bench rebuild --d x", "d must be integers separated by commas, got 'x'"),
    ("bench rebuild --d 0", "d must be an integer of at least 1, got 0"),
    ("bench rebuild --pairs 0", "pairs must be an integer of at least 1, got 0"),
    ("bench rebuild --distribution cauchy", "distribution must be one of gaussian, sphere, rademacher, got 'cauchy'"),
    ("bench rebuild --device tpu", "device must be one of cpu, cuda, cuda:N, auto, got 'tpu'"),
    (f"noise --key 1{'0' * 16}", "key must be a hexadecimal number of at most 16 digits, got '10000000000000000'"),
    ("noise --first -1", "first must be an integer of at least 0, got -1"),
    ("noise --count 0", "count must be an integer of at least 1, got 0"),
    ("noise --first 5 --d 6", r"first + count must be at most d=6, got 13"),
    # bound and stepsize
    ("bound --d 9 --L 1", "error: theorem must be 1 or 2 unless statement is given, got None"),
    (f"bound {THEOREM_2} --statement theorem-1", "error: theorem must stay unset where statement is given, got 2"),
    ("bound --statement the.9 --d 9 --L 1", "error: statement must be one of 26 names, got 'the.9': theorem-1,"),
    ("stepsize --theorem 2 --d 9 --L 1", "error: kappa must be given"),
    ("bound --theorem 2 --P 3", "error: d, L, kappa must be given, got None"),
    ("stepsize --theorem 1 --d 9 --L 0", "error: L must be a finite number above 0, got 0.0"),
    (f"bound {THEOREM_2} --K 2", "error: K must be 1 in theorem-2, got 2"),
    (f"bound {THEOREM_2} --m 10 --M 3", "error: m must be an integer in 1..3, got 10"),
    ("stepsize --theorem 1 --d 9.5 --L 1", "error: Invalid value for '--d': '9.5' is not a valid integer."),
    ("stepsize --statement variance --d 9 --L 1", "error: statement must have a condition on η"),
    # check and tightness
    (
        "check theorem-9",
        "error: statement must be one of 26 names, got 'theorem-9' (did you mean theorem-2?): theorem-1,",
    ),
    ("check theorem-1 --variant mine", "error: variant must be one of stated, corrected"),
    ("check theorem-1 --on cubics", "error: --on must be one of quadratics, waves, piecewise, got 'cubics'"),
    ("check theorem-1 --effort 0", "error: effort must be an integer of at least 1"),
    ("check nowhere.py:right", "error: statement must be module:function that can be imported, got 'nowhere.py:right'"),
    (f"tightness {EXAMPLE}:left", "error: statement must be module:function that can be imported"),
    (f"check {EXAMPLE}:nu", f"error: statement '{EXAMPLE}:nu' must make a theory.statements.statement.Statement, got"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with files of all sorts."""
    here = tmp_path / "here"  # beside it is the cache of the libraries
    (here / "folder").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of a module:function is added
    code = "import sys, torch\nexits = sys.exit\ndef net(): return torch.nn.Linear(3, 2)\n"
    code += "def stops(outputs, targets): sys.exit(0)\n"
    code += "def f(): return [(torch.ones(4, 3), torch.zeros(4).long())], (torch.ones(4, 3), torch.zeros(4).long())\n"
    texts = {"exits.py": "raise SystemExit(0)", "mine.py": code}
    texts |= {
        "file": "",
        "key.toml": "learning_rate = 0.1\n",
        "twice.toml": "rounds=1\nrounds=2",
        "digits.toml": f"seed={LONG}",
        "list.toml": "lr=[1]",
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    (here / "binary").write_bytes(bytes(range(256)))
    return here


@pytest.mark.parametrize(("argv", "message"), CASES, ids=[argv[:60] for argv, _ in CASES])
def test_bad_input_is_one_line_before_anything_is_begun_or_written(
    argv: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = sorted(folder.rglob("*"))
    told = refused(capsys, *argv.split(" "))
    assert message in told
    assert len(told.partition(" names, got ")[0]) < 600  # a list of all names is as long as it is
    assert sorted(folder.rglob("*")) == there


def _numeric(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag and option.type.name.lower() != "text"


OPTIONS = [(command, each) for _, command in EVERY for each in command.params if _numeric(each)]
TEXTS = st.text() | st.floats().map(str) | st.integers().map(str) | st.sampled_from([HUGE, LONG, "٣", "1e400", "-0"])


@given(st.sampled_from(OPTIONS), TEXTS)
@settings(max_examples=200)
def test_no_text_for_a_number_is_more_than_refused(own: tuple[click.Command, click.Parameter], text: str) -> None:
    command, option = own
    with contextlib.suppress(click.ClickException):  # whatever else is raised is a fault
        option.type_cast_value(click.Context(command), (text,) if option.multiple else text)


NUMBERS = "--rounds --clients --sampled --batch-size --local-steps --perturbations --lr --mu --momentum --grid --seed"


@given(option=st.sampled_from(NUMBERS.split()), text=TEXTS)
@example("--lr", "1e-320")
@settings(max_examples=40)
def test_no_number_makes_a_run_fail_otherwise_than_in_a_line(option: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "dataset_of", lambda *_: (_ for _ in ()).throw(InputError("here the data are loaded")))
        assert main(["train", option, text]) == 2


@given(name=st.sampled_from(["first", "direction", "d", "key"]), text=TEXTS)
@settings(max_examples=20)
def test_no_number_makes_noise_fail_otherwise_than_in_a_line(name: str, text: str) -> None:
    assert main(["noise", "--count", "2", f"--{name}", text]) in (0, 2)


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
