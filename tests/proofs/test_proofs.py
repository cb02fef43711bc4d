"""``make prove``: every proof stands, and fails where a constant of it is changed; without a prover it says a word."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import sampled

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "proofs"
PROVE = ["make", "-s", "-C", str(ROOT), "-o", ".venv/.installed", f"BIN={Path(sys.executable).parent}", "prove"]
prover = pytest.mark.skipif(shutil.which("coqc") is None, reason="needs coqc (coq libcoq-flocq libcoq-interval)")

# What stops, the file that is changed, what is changed in it, and the theorem at which it stops.
FAULTS = [
    ("Replay", "Replay", "Restart => (0, x0)", "Restart => (1, x0)", "receive_keeps"),
    ("Moments", "Moments", "16 * 5 * eta / P", "17 * 5 * eta / P", "theorem_1_is_false"),
    ("Revert", "Revert", "24 128 eq_refl eq_refl 3 (-27)", "24 128 eq_refl eq_refl 4 (-27)", "float32_does_not"),
    ("Revert", "Revert", "(Z.abs x <= 2 ^ 23)", "(Z.abs x <= 2 ^ 24)", "grid_comes_back"),
    ("Moments", "Moments", "+ / INR P * (gamma", "- / INR P * (gamma", "second_moments"),
    ("Normals", "Normals", "(value (normal i b)) <= 5.7683", "(value (normal i b)) <= 5.7682", "normals_are_bounded"),
    ("Answers", "Stream", "0xD2511F53", "0xD2511F55", "philox_"),
    ("Answers", "Stream", "decimal 795006678 10", "decimal 795006778 10", "direction_"),
]  # fmt: skip


def coqc(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["coqc", f"{name}.v"], cwd=folder, capture_output=True, text=True, check=False)


def answers() -> str:
    """The known answers as statements."""
    vectors = subprocess.run(
        [sys.executable, "-m", "decomfl_lab", "noise", "--vectors"], stdout=subprocess.PIPE, check=True
    )
    made = subprocess.run(
        [sys.executable, PROOFS / "answers.py"], input=vectors.stdout, stdout=subprocess.PIPE, check=True
    )
    return made.stdout.decode()


@prover
@pytest.mark.parametrize(("name", "file", "right", "wrong", "stops"), sampled(FAULTS, quick=2))
def test_a_changed_constant_fails(name: str, file: str, right: str, wrong: str, stops: str, tmp_path: Path) -> None:
    for path in PROOFS.glob("*.v"):
        shutil.copy(path, tmp_path)
    if name == "Answers":
        (tmp_path / "Answers.v").write_text(answers(), encoding="utf-8")
    changed = tmp_path / f"{file}.v"
    text = changed.read_text(encoding="utf-8")
    assert text.count(right) == 1
    changed.write_text(text.replace(right, wrong), encoding="utf-8")
    if name in ("Revert", "Normals", "Answers"):
        assert coqc(tmp_path, "Stream").returncode == 0
    found = coqc(tmp_path, name)
    assert found.returncode == 1
    line = int(found.stderr.split("line ")[1].split(",")[0])
    before = (tmp_path / f"{name}.v").read_text(encoding="utf-8").splitlines()[:line]
    theorem = [each for each in before if each.startswith(("Theorem", "Lemma", "Example"))][-1]
    assert theorem.split()[1].startswith(stops)


@prover
@pytest.mark.thorough
def test_all_is_proved_and_what_is_assumed_is_printed(tmp_path: Path) -> None:
    found = subprocess.run([*PROVE, f"OUT={tmp_path}"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("Closed under the global context") == 6  # all of Replay.v: no axiom
    assert "Answers.v" in found.stdout
    text = (tmp_path / "proofs" / "Answers.v").read_text(encoding="utf-8")
    assert text.count("vm_compute") == 28  # every known answer
    said = "".join(path.read_text(encoding="utf-8") for path in PROOFS.glob("*.v"))
    assert not {"Admitted", "Axiom", "Parameter"} & set(said.split())


def test_without_a_prover_a_word_is_said(tmp_path: Path) -> None:
    found = subprocess.run(
        [*PROVE, "COQC=no-such-prover", f"OUT={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0
    assert "nothing is proved: there is no no-such-prover" in found.stdout
    assert not list(tmp_path.iterdir())
