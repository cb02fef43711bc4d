"""The laws of identities: who shares noise, who has his own."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab.cli.main import main
from decomfl_lab.laws import IDENTITY_LAWS, identity_suite, verify_identity
from tests.cases import refused, refuses, rows_of

OWN, SHARED = {"step": 4, "prompt": 7}, {"tp": 2}


def seed_of(step: int, prompt: int, tp: int) -> int:
    return 1000 * step + prompt


def of_numpy(step: int, prompt: int, tp: int) -> Any:
    return np.random.default_rng([step, prompt]).standard_normal(300)


def of_torch(step: int, prompt: int, tp: int) -> Any:
    return torch.randn(300, generator=torch.Generator().manual_seed(seed_of(step, prompt, tp))).bfloat16()


@pytest.mark.parametrize("noise", [seed_of, of_numpy, of_torch, [lambda step, prompt: (step, prompt)] * 2])
def test_right_noise_keeps_every_law(noise: Any) -> None:
    found = verify_identity(noise, OWN, {} if isinstance(noise, list) else SHARED)
    assert (found.broken, found.tried) == ([], 6), found


_count = itertools.count()


def _of_everybody(step: int, prompt: int, tp: int) -> Any:
    np.random.seed(seed_of(step, prompt, tp))
    return np.random.standard_normal(300)


FAULTS: dict[str, tuple[list[str], Callable[..., Any], str]] = {
    "drawn anew": (["repeatable", "shared-agree"], lambda step, prompt, tp: next(_count), "other noise"),
    "modulo a chunk": (
        ["each-coordinate-changes-it", "identities-differ"],
        lambda step, prompt, tp: 1000 * step + prompt % 3,
        r"\(step 0, prompt 0, tp 0\) and \(step 0, prompt 3, tp 0\) have the same noise",
    ),
    "mixed into one": (
        ["identities-differ"],
        lambda step, prompt, tp: (step + 3) * (prompt + 17) + prompt,
        r"have the same noise: \d+",
    ),
    "another sign": (
        ["each-coordinate-changes-it", "identities-differ"],
        lambda step, prompt, tp: (-1) ** prompt * of_numpy(step, prompt // 2, tp),
        "noise of cosine -1.000",
    ),
    "a rank of its own": (["shared-agree"], lambda step, prompt, tp: (step, prompt, tp), "have other noise"),
    "the generator of everybody": (["randomness-of-others-stays"], _of_everybody, "random generator"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_names_two(name: str) -> None:
    laws, noise, says = FAULTS[name]
    found = verify_identity(noise, OWN, SHARED)
    if name == "drawn anew":
        assert set(laws) <= set(found.broken)
    else:
        assert found.broken == laws, found
    assert any(re.search(says, own.counterexample) for own in found)


def test_sharing_that_is_switched_off_draws_anew() -> None:
    apart = lambda step, prompt, tp: (step, prompt, tp)  # noqa: E731
    for off, status in ((apart, "holds"), (seed_of, "broken")):
        (found,) = verify_identity(seed_of, OWN, SHARED, off=off, laws=["off-draws-anew"])
        assert found.status == status


def test_a_generator_that_keeps_few_bits_makes_two_of_one() -> None:
    noise = lambda step: 3 + step * 2**32  # noqa: E731
    assert not verify_identity(noise, {"step": 3}).broken
    assert verify_identity(noise, {"step": 3}, bits=32).broken == ["each-coordinate-changes-it", "identities-differ"]


def test_noise_that_depends_on_who_was_asked_before_is_found() -> None:
    asked: list[int] = []

    def noise(step: int) -> int:
        asked.append(step)
        return step + 100 * (asked[-2:] == [2, 1])

    (found,) = verify_identity(noise, {"step": 3}, laws=["order-does-not-matter"])
    assert "(step 1) has other noise when" in found.counterexample


@refuses(*rows_of(__file__)["refused"], error=ValueError)
def test_bad_arguments_are_refused(options: dict[str, Any]) -> None:
    verify_identity(**{"noise": seed_of, **options})


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def test_what_processes_wrote_down_is_judged_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"step": s, "prompt": p, "tp": t, "noise": 10 * s + p % 3} for s in range(3) for p in range(4) for t in (0, 1)
    ]
    path = written(tmp_path / "a.jsonl", rows)
    assert main(["verify", "--identity", path, "--shared", "tp"]) == 1
    assert "(prompt 0, step 0, tp 0) and (prompt 3, step 0, tp 0) have the same noise" in capsys.readouterr().out
    rows = [row for row in rows if row["prompt"] != 3]
    assert main(["verify", "--identity", written(tmp_path / "b.jsonl", rows), "--shared", "tp"]) == 0
    assert main(["verify", "--identity", path]) == 1  # where all coordinates are own, two ranks share noise
    rows[-1]["noise"] = 77
    assert main(["verify", "--identity", written(tmp_path / "c.jsonl", rows), "--shared", "tp"]) == 1
    assert "other noise" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "says"), rows_of(__file__)["rows"])
def test_lines_that_are_none_are_refused(
    rows: list[Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(says, refused(capsys, "verify", "--identity", written(tmp_path / "a.jsonl", rows)))
    refused(capsys, "verify", "--identity", str(tmp_path / "none.jsonl"))


def test_everybody_is_looked_at_and_whatever_is_raised_breaks_a_law() -> None:
    def later(step: int) -> int:
        np.random.seed(step) if step == 2 else None
        return step

    (found,) = verify_identity(later, {"step": 3}, laws=["randomness-of-others-stays"])
    assert "asking for (step 2) moves" in found.counterexample
    assert verify_identity(lambda step: exit(step), {"step": 2}, laws=["repeatable"])[0].status == "crashed"


def test_a_suite_has_a_test_a_law() -> None:
    suite = identity_suite(lambda step: step % 2, {"step": 3}, xfail={"identities-differ": "issue 1"})
    assert len(IDENTITY_LAWS) == 7
    suite("repeatable")
    with pytest.raises(pytest.fail.Exception, match="have the same noise"):
        suite("each-coordinate-changes-it")
    with pytest.raises(pytest.xfail.Exception):
        suite("identities-differ")
