"""An aggregation, an attack and a schedule of η of one's own: kept, resumed, replayed, refused, put to laws."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab import laws
from decomfl_lab.cli.main import main
from decomfl_lab.protocol.aggregation import OwnRule
from tests.cases import refused, refuses

x = torch.randn(90, 6, generator=torch.Generator().manual_seed(1))
PAIRS = [(x[n : n + 15], (x[n : n + 15, 0] > 0).long()) for n in range(0, 90, 15)]
OPTIONS: dict[str, Any] = {"perturbations": 3, "lr": 0.05, "batch_size": 8, "eval_every": 2, "attackers": 1}


def middle(replies: Any) -> Any:
    return np.median(replies, axis=0)


def lie(own: Any, honest: Any, z: Any) -> Any:
    return honest.mean(axis=0) - 2 * own + z


def falling(r: int, lr: float) -> float:
    return lr / (1 + r)


class Middle:
    least = 4  # replies, without which nothing is in the middle

    def __call__(self, replies: Any) -> Any:
        return np.sort(replies, axis=0)[1:-1].mean(axis=0)


PARTS: dict[str, Any] = {
    "importable": {"aggregation": middle, "attack": lie, "lr_schedule": falling},
    "nameless": {"aggregation": Middle(), "attack": lambda *of: lie(*of), "lr_schedule": lambda *of: falling(*of)},
}
CODE = """
import numpy as np

open("ran", "w").close()
middle = lambda replies: np.sort(replies, axis=0)[1:-1].mean(axis=0)
lie = lambda own, honest, z: honest.mean(axis=0) - 2 * own + z
falling = lambda r, lr: lr / (1 + r)
"""
NAMED = ["--aggregation", "parts.py:middle", "--attack", "parts.py:lie", "--lr-schedule", "parts.py:falling"]


def train(rounds: int = 6, **options: Any) -> lab.Run:
    torch.manual_seed(0)
    return lab.train(nn.Linear(6, 2), clients=PAIRS, rounds=rounds, **OPTIONS | options)


def of_batch(model: nn.Module, batch: Any) -> torch.Tensor:
    return 2 * cross_entropy(model(batch[0]), batch[1])


def test_a_run_is_loaded_with_the_loss_of_model_and_batch_that_its_configuration_names(tmp_path: Path) -> None:
    whole = train(4, loss=of_batch, attack="sign")
    train(2, loss=of_batch, attack="sign", out=tmp_path)
    run = lab.load(tmp_path, nn.Linear(6, 2), clients=PAIRS, trust_code=True)
    run.more(2)
    assert torch.equal(run.federation.x, whole.federation.x)
    assert not torch.equal(run.federation.x, train(4, attack="sign").federation.x)


@pytest.mark.parametrize("kind", PARTS)
def test_a_run_with_parts_of_ones_own_is_kept_resumed_and_replayed_to_the_bit(kind: str, tmp_path: Path) -> None:
    parts, given = PARTS[kind], {"model": nn.Linear(6, 2), "clients": PAIRS}
    whole = train(**parts)
    for name, other in {"aggregation": lab.Mean(), "attack": "sign", "lr_schedule": {}}.items():
        assert not torch.equal(train(**parts | {name: other}).federation.x, whole.federation.x)
    train(3, **parts, out=tmp_path)
    with pytest.raises(
        lab.InputError, match="must name no code, .* aggregation = |schedule and aggregation and attack"
    ):
        lab.load(tmp_path, **given)
    with pytest.raises(lab.InputError, match="differs in attack"):
        lab.load(tmp_path, **given, **parts | {"attack": falling})
    lab.load(tmp_path, **given, **parts).more(2)
    train(6, **parts, out=tmp_path)  # goes on in the folder
    assert lab.load(tmp_path, **given, **parts).federation.x.equal(whole.federation.x)
    torch.manual_seed(0)
    assert lab.replay(tmp_path, nn.Linear(6, 2)).agrees  # without the code


def test_by_their_names_on_the_command_line_a_replay_imports_nothing_but_to_measure(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("parts.py").write_text(CODE)
    more = ["--rounds", "4", "--attackers", "1", "--out", "run"]
    assert main(["train", *more, *NAMED]) == 0
    Path("ran").unlink()
    assert main(["replay", "run"]) == 0
    told = refused(capsys, "replay", "run", "--measure", "1")
    assert "aggregation = 'parts.py:middle', attack = 'parts.py:lie', lr_schedule = 'parts.py:falling'" in told
    assert not Path("ran").exists()
    assert main(["replay", "run", "--measure", "1", "--trust-code"]) == 0
    assert main(["train", "--config", "run/config.toml", "--out", "run", "--trust-code"]) == 0
    for flag in ("lr-schedule", "attack", "aggregation"):
        assert "file.py:name, got " in refused(capsys, "train", *more, f"--{flag}", "neither")
    assert main(["train", "decomfl", "--help-all"]) == 0
    assert "Or file.py:name of a function of (round, lr)." in " ".join(capsys.readouterr().out.split())


COUNT = itertools.count(1)
RULES: dict[str, tuple[Any, str]] = {
    "hangs on the order": (lambda replies: replies.mean(axis=0), r"the same bits in any order"),
    "takes the one in the middle": (lambda replies: replies[len(replies) // 2], "the same bits in any order"),
    "writes": (lambda replies: np.negative(replies[0], out=replies[0]), "read-only; copy what it is given before it"),
    "is NaN": (lambda replies: replies[0] * np.float32("nan"), r"return float32 numbers .* all finite, got .*nan"),
    "is of another shape": (lambda replies: replies[0, 0], r"shape \(K, P\) = \(1, 3\), all finite, got 'float32 of"),
    "is of another type": (lambda replies: np.median(replies, axis=0).astype(float), "float32 numbers.* got 'float64"),
    "keeps a count": (lambda replies: replies[0] * 0 + np.float32(next(COUNT)), "be the same when it is asked again"),
    "takes nothing": (lambda: 0.0, r"must run as a function of \(replies\), got 'own <lambda>' \(TypeError"),
}
WRONG: dict[str, Any] = {name: ({"aggregation": rule}, told) for name, (rule, told) in RULES.items()} | {
    "needs more replies": ({"aggregation": type("Seven", (Middle,), {"least": 7})()}, "clients m must be at least 7"),
    "says no number": ({"aggregation": type("None", (Middle,), {"least": 0})()}, "least of aggregation own None must"),
    "a lie of another shape": ({"attack": lambda own, honest, z: z[0]}, r"return floating numbers of shape \(K, P\) ="),
    "a lie that is NaN": ({"attack": lambda own, honest, z: z * np.nan}, "attack own <lambda> must return .*nan"),
    "a lie that draws": ({"attack": lambda own, honest, z: z * next(COUNT)}, "must be the same when it is asked again"),
    "a lie with a scale": ({"attack": lie, "attack_scale": 2.0}, "attack_scale c must be left out with attack"),
    "a rate of 0": ({"lr_schedule": lambda r, lr: lr * (5 - r)}, "at round 5 must be a finite number above 0, got 0.0"),
    "a rate that counts": ({"lr_schedule": lambda r, lr: next(COUNT)}, "lr_schedule own <lambda> must be the same"),
    "a rate of the round alone": ({"lr_schedule": lambda r: 0.1}, r"must run as a function of \(round, lr\), got 'own"),
}


@refuses(*WRONG.values())
def test_what_a_part_makes_is_checked_before_a_result_rests_on_it(parts: dict[str, Any]) -> None:
    train(**{"attack": "sign"} | parts)


def test_lies_are_kept_within_what_float32_holds_and_votes_are_votes() -> None:
    large = {"attack": lambda own, honest, z: z * 1e300}
    assert train(2, aggregation=Middle(), **large).federation.x.isfinite().all()
    assert train(2, method="feedsign", **large).verify()


@pytest.mark.parametrize(
    ("rule", "wrong"), [(middle, 0), (Middle(), 0), *((rule, 1) for rule, _ in [*RULES.values()][:3])]
)
def test_the_laws_are_asked_of_a_rule_of_ones_own(rule: Any, wrong: int) -> None:
    of = laws.of_method(lab.DeComFL(aggregation=rule, attack=lie, attackers=1))
    outcomes = laws.verify(of, cases=25, laws=["aggregates-have-no-order", "agreement-is-kept"])
    assert bool(outcomes.broken) == wrong
    assert wrong or {outcome.status for outcome in outcomes} == {"holds"}


class Writing(laws.Implementation):
    def aggregate(self, rule: Any, replies: Any) -> Any:
        found = rule(replies)
        replies[0][:] = 1
        return found


def test_laws_of_the_labs_rules_are_not_asked_and_replies_that_are_written_to_are_seen() -> None:
    found = laws.verify(laws.of_method(lab.DeComFL(aggregation=middle)), cases=5, laws=["krum-takes-one-reply-whole"])
    assert found[0].status == "skipped"
    assert "a reply after it" in str(laws.verify(Writing(), cases=25, laws=["aggregates-have-no-order"]))


@pytest.mark.parametrize("own", [OwnRule(middle), OwnRule(f"{__name__}:middle")])
def test_a_part_goes_to_another_process_with_its_function(own: OwnRule) -> None:
    assert pickle.loads(pickle.dumps(own)).own.function is middle
