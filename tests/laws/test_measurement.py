"""What clients send is what they measure, or what a method says that they make of it: every other way is told."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import decomfl_lab as lab
from decomfl_lab import laws
from decomfl_lab.cli.main import main
from decomfl_lab.laws import Wavy
from decomfl_lab.laws.check import check_law
from decomfl_lab.methods.registry import LAGGING, METHODS
from decomfl_lab.noise import Format
from decomfl_lab.protocol.client import Client as LabsClient
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.rules import LowPrecision, Step
from tests.cases import refuses, sampled
from tests.laws.foreign import Client, Foreign

MEASURED = "replies-are-measurements"
SOME = (MEASURED, "rebuilt-client-equals-server", "revert-leaves-every-bit", "records-are-of-their-rounds-replies")


class _Changing:
    """An estimator around another one, whose scalars go through a function."""

    def __init__(self, inner: Any, change: Callable[[Any], Any]) -> None:
        self.inner, self.change, self.wants_slopes, self.points = inner, change, inner.wants_slopes, inner.points

    def combine(self, values: Any, slopes: Any, mu: float) -> Any:
        found = self.inner.combine(values, slopes, mu)
        return replace(found, g=self.change(found.g))


class _SendsOtherwise(LabsClient):
    """What it sends goes through a function; its local steps were taken by what did not."""

    change: Any

    def handle(self, plan: Plan) -> Reply:
        reply = super().handle(plan)
        return replace(reply, scalars=self.change(reply.scalars))


class Changed(lab.DeComFL):
    """It says that scalars go through one function, steps by what went through another, and sends a third's."""

    said = stepped = sent = staticmethod(lambda g: g)

    def measured_by(self) -> Any:
        return _Changing(super().measured_by(), self.said)

    def clients(self, setting: Any, start: Any) -> Any:
        found: Any = super().clients(setting, start)
        for client in found:
            client.estimator = _Changing(client.estimator.inner, self.stepped)
            client.__class__ = _SendsOtherwise
            client.change = self.sent
        return found


def _right(change: Callable[[Any], Any]) -> Any:
    """A method that sends what the function makes of its scalars, steps by it, and says so."""
    return type("Right", (Changed,), {"said": staticmethod(change), "stepped": staticmethod(change)})


def _clipped(*where: str, c: float = 0.2) -> Any:
    """A method that clips in these places."""
    return type("Clipped", (Changed,), dict.fromkeys(where, staticmethod(lambda g: g.clip(-c, c))))


ClipsWhatItSends = _clipped("said", "sent")


class HalvesTheRate(lab.DeComFL):
    """Its server sends half of η."""

    def server(self, *of: Any, **named: Any) -> Any:
        found = super().server(*of, **named)
        found.eta = Schedule(found.eta.initial / 2)
        return found


@dataclass(frozen=True)
class Doubling(lab.Sgd):
    """A rule of somebody's own, which does more than what it derives from."""

    def emit(self, program: Any, step: Step) -> None:
        super().emit(program, replace(step, eta=2 * step.eta))


class Doubled(lab.DeComFL):
    """A method with a rule of its own."""

    rule: ClassVar[Any] = Doubling()


@pytest.mark.parametrize("name", LAGGING)
def test_methods_of_the_lab_keep_the_laws(name: str) -> None:
    outcomes = laws.verify(laws.of_method(METHODS[name]), cases=3, laws=SOME)
    assert [outcome.status for outcome in outcomes] == ["holds"] * len(SOME), outcomes


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*(METHODS[name] for name in LAGGING), _clipped("said", "stepped", c=1.0)])
def test_methods_keep_all_laws(kind: Any) -> None:
    outcomes = laws.verify(laws.of_method(kind), cases=20)
    assert outcomes.exit_code == 0, outcomes
    assert outcomes.tried >= 23


RIGHT = {
    "clipped": _clipped("said", "stepped")(),
    "clipped, nearly all of them": _clipped("said", "stepped", c=1e-6)(),
    "multiples": _right(lambda g: (g / np.float32(0.01)).round() * np.float32(0.01))(),
    "without their mean": _right(lambda g: g - g.mean())(),
    "over the largest": _right(lambda g: g / np.abs(g).max())(),
    "folded": _right(lambda g: abs(abs(g) - np.float32(0.2)))(),
    "with second differences": lab.DeComFL(log_kappa=True),
    "votes of forward differences": lab.FeedSign(estimator="forward"),
    "with a key": lab.DeComFL(private_seeds=True),
    "rule of its own": Doubled(),
}


@pytest.mark.parametrize("name", sampled(RIGHT, 2))
def test_whatever_a_method_says_that_it_sends_is_no_fault(name: str) -> None:
    outcome = check_law(laws.LAWS[MEASURED], laws.of_method(RIGHT[name]), cases=30)
    assert (outcome.status, outcome.cases) == ("holds", 30), outcome


WRONG = {
    "steps by what it did not clip": (
        ClipsWhatItSends(), "g of client 0 in round 0, local step [12] of .*; it agrees with what it sends if its "
        "local steps are taken by what it measured, and not by what it sent"
    ),
    "clips, and does not say so": (_clipped("sent")(), r"local step 0 of .*: -?0\.2\d* is not -?[0-9.]+ within"),
    "says that it clips, and does not": (_clipped("said")(), "what is measured, before that is made of it"),
    "sends half of η": (HalvesTheRate(), "rate, P and distribution in client 0's plan of round 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(WRONG, 3))
def test_a_method_that_does_otherwise_is_told_what_it_does(name: str) -> None:
    method, says = WRONG[name]
    law = "records-are-of-their-rounds-replies" if "η" in name else MEASURED
    outcome = check_law(laws.LAWS[law], laws.of_method(method), cases=100)
    assert outcome.status == "broken", outcome
    assert re.search(says, " ".join(outcome.counterexample.split())), outcome.counterexample


@pytest.mark.thorough
def test_a_counterexample_is_simplified_to_the_methods_rule_and_estimator() -> None:
    own = LowPrecision(lab.Sgd(), Format("float16"), "nearest")
    outcome = check_law(laws.LAWS[MEASURED], laws.of_method(ClipsWhatItSends(rule=own, estimator="forward")), cases=50)
    case = " ".join(outcome.counterexample.split())
    assert f"rule = {own}, estimator = forward, " in case
    plain = check_law(laws.LAWS[MEASURED], laws.of_method(ClipsWhatItSends()), cases=50)
    assert f"rule = {lab.DeComFL().rule}, estimator = central, " in " ".join(plain.counterexample.split())


@refuses(
    *((name, f"replay what they missed, got '{name}'$") for name in METHODS if name not in LAGGING),
    ("nothing", "method must be a decomfl_lab.methods.method.Method, got None"),
)
def test_refused(name: str) -> None:
    laws.of_method(METHODS.get(name))  # type: ignore[arg-type]


def test_a_method_is_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import decomfl_lab as lab\nclass Mine(lab.FZOO): pass\nmade = Mine(nu=1) if 0 else Mine()\n")
    for name in ("Mine", "made"):
        assert main(["verify", "--target", f"{path}:{name}", "--law", "a-gap-is-refused", "--cases", "2"]) == 0
        assert "Mine: 1 of 1 laws hold" in capsys.readouterr().out
    assert main(["verify", "--target", "decomfl_lab.methods.fedavg:FedAvg"]) == 2
    assert "and replay what they missed, got 'fedavg'" in capsys.readouterr().err


class Bent(Foreign):
    """With clients of some kind, that know forward differences alone."""

    def supports(self, case: laws.Case) -> bool:
        return super().supports(case) and case.estimator == "forward"


# Wrong clients, none of which is like a planted fault ----------------------------------------------------------------


def _bug(**bent: Any) -> type[Client]:
    return type("Bug", (Client,), bent)


def _direction_of(seed_of: Any, p_of: Any = lambda self, p: p) -> Any:
    return lambda self, k, p: torch.from_numpy(self.case.direction(seed_of(self, k), p_of(self, p)))


def _scalar(f: Any) -> Any:
    return lambda self, x, z: float(f(self.loss, x, z, self.steps, self.case.mu))


def _with_pull(self: Any, plan: Any) -> None:
    if not plan.records and self.replica.round > vars(self).get("was", 0):  # it was sent the model
        self.steps = 0
    self.was = self.replica.round


def _with_lag(self: Any, plan: Any) -> None:
    self.steps += len(plan.records) > 1


def _last_of_a_later_place(self: Any, k: int, g: Any) -> Any:
    """One scalar of another sign, of a later round, client and local step."""
    if self.plan.round and self.id and k:
        g[-1] = -g[-1]
    return g


BUGS = {
    # along what
    "next-direction": _bug(direction=_direction_of(lambda self, k: self.plan.seeds[k], lambda self, p: p + 1)),
    "norm-one": _bug(direction=lambda self, k, p: torch.nn.functional.normalize(Client.direction(self, k, p), dim=0)),
    # where
    "x-half-way": _bug(x_of=lambda self, k: torch.from_numpy((self.before.x + self.replica.x) / 2)),
    "steps-uphill": _bug(moves=lambda self, g: -g),
    "steps-not": _bug(moves=lambda self, g: 0 * g),
    # on which data
    "counter-forgotten-at-a-pull": _bug(begin=_with_pull),
    "counter-counts-lags": _bug(begin=_with_lag),
    # what is made of it
    "sign-of-later-clients": _bug(sent=lambda self, k, g: -g if self.id else g),
    "sign-of-one-scalar-alone": _bug(sent=_last_of_a_later_place),
    "over-2mu": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x + mu * z, t) - f(x, t)) / (2 * mu))),
    "backward": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x, t) - f(x - mu * z, t)) / mu)),
    "by-the-first-client": _bug(answer=lambda self, reply: reply._replace(client=0)),
    "half-precision": _bug(sent=lambda self, k, g: g.astype(np.float16)),
}


@pytest.mark.parametrize("name", sampled(BUGS, 7))
def test_a_client_that_measures_something_else_is_told_where(name: str) -> None:
    outcome = check_law(laws.LAWS[MEASURED], Bent(BUGS[name]), cases=100, shrink=False)
    assert outcome.status == "broken", outcome
    place = r"g of client \d in round \d, local step \d of \d, direction \d of \d:\s+\S+ is\s+not"
    if name == "by-the-first-client":
        place = r"who answers client 1's plan, and of which round: \(0, 0\) is not \(1, 0\)"
    assert re.search(place, outcome.counterexample), outcome.counterexample


# Right clients ---------------------------------------------------------------------------------------------------


def _walk(self: Client, x: Any, z: Any) -> float:
    """As MeZO does it: x is moved to the point and back, in its own numbers, and drifts by roundings."""
    mu, step = self.case.mu, self.step()
    x.add_(z, alpha=mu)
    above = self.loss(x, step)
    x.sub_(z, alpha=mu)
    return float((above - self.loss(x, step)) / mu)


WAYS = {
    "plain": Client,
    "points-in-float64": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x.double() + mu * z, t) - f(x, t)) / mu)),
    "walks": _bug(scalar=_walk, x_of=lambda self, k: torch.from_numpy(self.replica.x.copy())),
}


@pytest.mark.parametrize("name", sampled(WAYS, 1))
def test_no_right_way_to_measure_is_taken_for_a_wrong_one(name: str) -> None:
    outcome = check_law(laws.LAWS[MEASURED], Bent(WAYS[name]), cases=100)
    assert outcome.status == "holds", outcome
    assert outcome.cases == 100


# The reference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 300])
def test_the_loss_has_its_gradient_and_its_slopes_are_at_most_one(d: int) -> None:
    loss, rng = Wavy(d, 2), np.random.default_rng(0)
    x, u, h = rng.standard_normal(d), rng.standard_normal(d), 1e-6
    above, below = loss.values(np.stack([x + h * u, x - h * u]), 5)
    assert loss.gradient(x, 5) @ u == pytest.approx((above - below) / (2 * h), abs=1e-6)
    assert np.linalg.norm(loss.waves / loss.scales[:, None], axis=1) == pytest.approx(np.ones(3))
    value, gradient = loss.value_and_gradient(torch.from_numpy(x), 5)
    assert (value, gradient.tolist()) == (loss(torch.from_numpy(x), 5), loss.gradient(x, 5).tolist())
