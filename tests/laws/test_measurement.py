"""What a client sends is measured: every way of being wrong is noticed and told, and no right way is taken for one."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import laws
from decomfl_lab.laws import LAWS, Wavy
from decomfl_lab.laws.check import check_law
from tests.laws.foreign import Client, Foreign
from tests.thorough import sampled

LAW = "replies-are-measurements"


class Bent(Foreign):
    """With clients of some kind, that know forward differences alone."""

    def supports(self, case: laws.Case) -> bool:
        return super().supports(case) and case.estimator == "forward"


# Wrong clients, none of which is among the planted faults -----------------------------------------------------------


def _bug(**bent: Any) -> type[Client]:
    return type("Bug", (Client,), bent)


def _direction_of(seed_of: Any, p_of: Any = lambda self, p: p) -> Any:
    return lambda self, k, p: torch.from_numpy(self.case.direction(seed_of(self, k), p_of(self, p)))


def _kept(name: str, value_of: Any) -> Any:
    """The value of the call before, or of this one at the first."""

    def call(self: Any, *at: Any) -> Any:
        now = value_of(self, *at)
        before = vars(self).get(name, now)
        vars(self)[name] = now
        return before

    return call


def _scalar(f: Any) -> Any:
    return lambda self, x, z: float(f(self.loss, x, z, self.steps, self.case.mu))


def _with_pull(self: Any, plan: Any) -> None:
    if not plan.records and self.replica.round > vars(self).get("was", 0):  # it was sent the model
        self.steps = 0
    self.was = self.replica.round


def _with_lag(self: Any, plan: Any) -> None:
    self.steps += len(plan.records) > 1


def _changed(seed: Any, i: int) -> Any:
    return seed ^ i if isinstance(seed, int) else tuple(own ^ i for own in seed)


def _last_of_a_later_place(self: Any, k: int, g: Any) -> Any:
    """One scalar of another sign, of a later round, client and local step."""
    if self.plan.round and self.id and k:
        g[-1] = -g[-1]
    return g


BUGS = {
    # along what
    "seeds-reversed": _bug(direction=_direction_of(lambda self, k: self.plan.seeds[-1 - k])),
    "next-direction": _bug(direction=_direction_of(lambda self, k: self.plan.seeds[k], lambda self, p: p + 1)),
    "own-seed": _bug(direction=_direction_of(lambda self, k: _changed(self.plan.seeds[k], self.id))),
    "norm-one": _bug(direction=lambda self, k, p: torch.nn.functional.normalize(Client.direction(self, k, p), dim=0)),
    # where
    "x-0": _bug(x_of=lambda self, k: self.case.initial()),
    "x-before": _bug(x_of=_kept("x", Client.x_of)),
    "x-half-way": _bug(x_of=lambda self, k: torch.from_numpy((self.before.x + self.replica.x) / 2)),
    "steps-uphill": _bug(moves=lambda self, g: -g),
    "steps-not": _bug(moves=lambda self, g: 0 * g),
    # on which data
    "counter-is-the-round": _bug(step=lambda self: self.plan.round),
    "counter-forgotten-at-a-pull": _bug(begin=_with_pull),
    "counter-counts-lags": _bug(begin=_with_lag),
    # what is made of it
    "sign-in-later-rounds": _bug(sent=lambda self, k, g: -g if self.plan.round > 1 else g),
    "sign-of-later-clients": _bug(sent=lambda self, k, g: -g if self.id else g),
    "sign-of-one-scalar-alone": _bug(sent=_last_of_a_later_place),
    "over-2mu": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x + mu * z, t) - f(x, t)) / (2 * mu))),
    "backward": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x, t) - f(x - mu * z, t)) / mu)),
    "over-K": _bug(sent=lambda self, k, g: g / self.plan.K),
    "last-direction-alone": _bug(sent=lambda self, k, g: np.full_like(g, g[-1])),
    "by-the-first-client": _bug(answer=lambda self, reply: reply._replace(client=0)),
    "half-precision": _bug(sent=lambda self, k, g: g.astype(np.float16)),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_client_that_measures_something_else_is_told_where(name: str) -> None:
    outcome = check_law(LAWS[LAW], Bent(BUGS[name]), cases=100, shrink=False)
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


RIGHT = {
    "plain": Client,
    "points-in-float64": _bug(scalar=_scalar(lambda f, x, z, t, mu: (f(x.double() + mu * z, t) - f(x, t)) / mu)),
    "walks": _bug(scalar=_walk, x_of=lambda self, k: torch.from_numpy(self.replica.x.copy())),
}


@pytest.mark.parametrize("name", sampled(RIGHT, 1))
def test_no_right_way_to_measure_is_taken_for_a_wrong_one(name: str) -> None:
    outcome = check_law(LAWS[LAW], Bent(RIGHT[name]), cases=100)
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
