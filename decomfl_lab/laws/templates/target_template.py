"""An implementation of your own, to be put to the laws: fill in what is yours.

    decomfl verify --target-template > mine.py      prints this file
    decomfl verify --target mine:Mine               tries every law, or those of --law NAME
    test_laws = laws.pytest_suite(Mine())           is a test a law, in a module of tests

What raises NotImplementedError, or is deleted, is not offered: the lab's takes its place, and laws about it alone are
skipped. Mostly it is enough to write ``Model`` and ``Client``, and to say in ``Mine.supports`` which cases they can do.
What they hand over may be of any class that has the fields of the lab's values, vectors may be numpy arrays, and any
ValueError refuses as InputError does.

The laws compare bits, so every product and every sum is rounded on its own, to the dtype of x, in the order written
here. A local step along z_p = case.direction(seed, p), a float32 array of d numbers, by the scalars g_p, p = 0..P-1:

    c_p(a) = float32(a / P * g_p), where a / P * g_p is computed in float64 (Python's floats) from left to right
    case.rule = Sgd(weight_decay=λ):
        x ← (1 − ηλ)·x, if λ > 0;  then for each p in turn  x ← x + c_p(−η)·z_p
    case.rule = Momentum(β, convention, weight_decay=λ), with w = 1 − β by the convention "paper" and w = 1 by "torch":
        m ← β·m;  m ← m + (wλ)·x, if λ > 0;  for each p in turn  m ← m + c_p(w)·z_p;  then  x ← x + (−η)·m

Scalars are measured at the client's present x, with f(x) = objective(x, step), where x is a torch tensor and ``step``
counts the local steps that the client has measured in its life (it picks the batch):

    case.estimator = "forward":       g_p = float32((f(x + μ z_p) − f(x)) / μ)
    case.estimator = "central":       g_p = float32((f(x + μ z_p) − f(x − μ z_p)) / 2μ)
    case.estimator = "central-sign":  g_p = int8, 1 where the central difference is at least 0, else −1
    case.estimator = "projection":    g_p = float32(⟨∇f(x), z_p⟩), by objective.value_and_gradient(x, step)

If your clients send something else of these losses, as clipped scalars, ``Mine.measured_by(case)`` returns what makes
it of them, a ``decomfl_lab.estimators.differences.Estimator``; local steps are taken by the scalars that are sent.

Every scalar of every reply is compared with one that the laws work out themselves, up to rounding. Points x + μz, and
gradients, of 16-bit models are of float32: widen x first.

The other rules are in ``help(decomfl_lab.AdaMM)`` and its like; the bits of directions in docs/noise-stream.md.
"""

from __future__ import annotations

from typing import Any

import torch

from decomfl_lab import Sgd, laws


class Model:
    """x and the optimizer's state after whole rounds: what the laws know as a replica.

    Attributes:
        round: The number of records applied.
    """

    def __init__(self, case: laws.Case) -> None:
        self.round = 0
        self.x = case.initial()  # a torch tensor of d numbers of case.dtype, one vector for tensors of case.shapes
        raise NotImplementedError


class Client:
    """A client.

    Attributes:
        id: The client's number i.
        replica: Its model, of a whole round whenever ``handle`` is not running.
        run_seed: None until the run's seed is written here (only where seeds are sent per run); nothing to do.
    """

    def __init__(self, case: laws.Case, i: int, objective: laws.Objective) -> None:
        self.id, self.replica, self.objective = i, Model(case), objective
        self.run_seed: int | None = None
        raise NotImplementedError


class Server:
    """A server.

    Attributes:
        history: The records that are kept, a laws.History; a restart writes it.
        held: The round that each client holds, empty where clients track it; a restart writes it.
        round: The round to be planned or under way.
        run_seed: The seed that every round's derive from.
        tracking: Who remembers which round a client holds.
        replica: The server's model, None where it is made without one.
    """

    def __init__(self, case: laws.Case, *, with_model: bool) -> None:
        self.history = laws.History()  # append(record), since(r), prune(r), start, end
        self.held = [0] * case.M if case.tracking is laws.Tracking.SERVER else []
        self.round, self.run_seed, self.tracking = 0, case.seed, case.tracking
        self.replica = Model(case) if with_model else None
        raise NotImplementedError


class Mine(laws.Implementation):
    """Your implementation: it makes the parts."""

    def supports(self, case: laws.Case) -> bool:
        """Whether the laws may be tried on this case; they are drawn from those that are. Widen it as you go.

        A law all of whose cases it refuses is an error (exit code 3), unless ``skips = {law: reason}`` names it.

        A case has M clients, K local steps, P (perturbations) and eta (learning rate), functions of the round, rule,
        estimator, mu, distribution ("gaussian", "sphere", "rademacher", all by ``case.direction``), shapes (one may be
        (), a number, and a model may be no more), dtype, seed, rounds, seeding (laws.Seeding), tracking
        (laws.Tracking), keep (records kept).
        """
        return case.rule == Sgd() and case.dtype == torch.float32 and case.estimator == "forward" and case.K == 1

    def client(self, case: laws.Case, i: int, objective: laws.Objective | None = None) -> Any:
        """Client i at round 0, with the loss ``objective``, or ``laws.Wavy(case.d, i)``."""
        return Client(case, i, laws.Wavy(case.d, i) if objective is None else objective)

    def replica(self, case: laws.Case, *, per_tensor: bool = False) -> Any:  # noqa: ARG002
        """A replica at round 0, at ``case.initial()``; ``per_tensor`` ones apply updates tensor by tensor."""
        return Model(case)

    # Below is what few people have of their own ----------------------------------------------------------------

    def server(self, case: laws.Case, *, with_model: bool = True) -> Any:
        """A server at round 0, which need not have a model unless it is asked to."""
        return Server(case, with_model=with_model)
