"""The laws of what is measured: every scalar that a client sends is of its own loss, at its own x, along its own z.

Replay agrees with whatever scalars were sent: a client that measures along the directions of another local step, or
where it stood when the round began, is followed by everybody to the last bit. So these laws work each scalar out anew:

    g_{i,r,p}^k = (f_{i,t}(x + μz) − f_{i,t}(x)) / μ,    x = x_{i,r}^k,    z = z(s_r^k, p)    [forward; others likewise]

from the records alone: x_r is the paper's recursion written out in numpy, x_{i,r}^k is x_r after the k local steps that
the client's own scalars say, s_r^k is the plan's seed, and t counts the local steps that client i has measured in its
life, lost replies too. Where an implementation, or a method, says that it sends something else of these losses
(``Implementation.measured_by``), they go through what it says, and local steps are taken by what comes out of it.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from decomfl_lab import noise
from decomfl_lab.engines.base import wide_dtype
from decomfl_lab.estimators.differences import ESTIMATORS, Estimator, Point
from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import AnyClient, Case, Implementation, RoundWatch, Wavy, play
from decomfl_lab.laws.register import LawBrokenError, bits, law, same
from decomfl_lab.methods.fzoo import Normalised
from decomfl_lab.methods.hiso import Whitened
from decomfl_lab.noise import Program, reference
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.protocol.server import PullPolicy
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import Picks, Seeding, StepSeed, draw_seeds, keyed, step_seed, stream_of
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, Step, UpdateRule

_Floats = NDArray[np.float64]
_CORNERS = 10
"""Values that are put to the ends of their errors in every combination; of more values 2¹⁰ combinations are drawn."""


# The paper's recursion written out in numpy: what whoever follows the records must hold, to the bit ------------------

_Vector = np.ndarray[Any, Any]


class WrittenOut:
    """x and the optimizer's state, followed in numpy: every line is a formula of the rule's docstring."""

    def __init__(self, case: Case, *, key: int | None = None, backend: str | None = None) -> None:
        """The model of round 0; ``key`` is the clients' private key, ``backend`` makes the directions."""
        self.case, self.key, self.backend = case, key, backend
        x = case.initial()
        start = x.to(wide_dtype(x)).numpy()
        self.vectors = {"x": start}  # and the rule's slots by their names, float32 (also of 16-bit models) or float64
        self.vectors |= {slot: np.full_like(start, case.rule.start(slot)) for slot in case.rule.slots}
        if case.rule.pool:
            self.vectors |= {"sums": np.zeros(case.pool, np.int32), "start": start}

    def directions(self, seed: StepSeed, P: int) -> _Vector:
        """z_p of a local step, float32 (P, d)."""
        streams = [stream_of(keyed(seed, self.key), p) for p in range(P)]
        draw = partial(noise.direction, d=self.case.d, distribution=self.case.distribution, backend=self.backend)
        return np.stack([draw(*stream) for stream in streams])

    @property
    def scale(self) -> _Vector | float:
        """s, which directions are multiplied with, shape (d,); 1 where the rule scales none."""
        slot = self.case.rule.scaling
        return 1.0 if slot is None else self.vectors[slot]

    def apply(self, record: RoundRecord, eta: float | None = None) -> None:
        """The K local steps of a round's record, at the learning rate ``eta``, or the record's."""
        eta = record.eta if eta is None else eta
        for k, (seed, g) in enumerate(zip(record.seeds, record.scalars, strict=True), 1):
            self._take(self.case.rule, seed, g, eta, last=k == record.K)

    def after_local_step(self, seed: StepSeed, g: ScalarArray, eta: float) -> "WrittenOut":
        """Another model: this one after a local step that a client takes between two measurements."""
        other = WrittenOut.__new__(WrittenOut)
        other.__dict__.update(self.__dict__)
        other.vectors = dict(self.vectors)
        rule = Sgd() if self.case.rule.pool else self.case.rule  # the sums of a pool are of whole rounds
        other._take(rule, seed, g, eta, last=False)
        return other

    def _take(self, rule: UpdateRule, seed: StepSeed, g: ScalarArray, eta: float, *, last: bool) -> None:
        step = Step(keyed(seed, self.key), g, eta, self.case.distribution, last)
        _step(rule, self.vectors, g, list(self.directions(seed, len(g))), eta, step)


def _narrow(v: _Vector, kind: str) -> _Vector:
    """The nearest number of a 16-bit format, by torch's conversion."""
    return torch.from_numpy(v).to(getattr(torch, kind)).float().numpy()


def _step(rule: UpdateRule, v: dict[str, _Vector], g: _Vector, z: list[_Vector], eta: float, step: Step) -> None:
    """One step of ``rule`` on the named vectors v, in numpy: every line is one formula of the rule's docstring."""
    number, P = v["x"].dtype.type, g.size

    def plus(vector: _Vector, factor: float) -> _Vector:
        for g_p, z_p in zip(g, z, strict=True):
            vector = vector + number(np.float32(factor / P * float(g_p))) * z_p.astype(vector.dtype)
        return vector

    match rule:
        case _ if not type(rule).__module__.startswith("decomfl_lab."):
            # A rule of somebody's own, of which nothing is known but its instructions: the reference runs them.
            program = Program(list(v))
            rule.emit(program, step)
            v |= {name: vector.copy() for name, vector in v.items()}
            noise.run(program, v, d=v["x"].size, backend="numpy")
        case Sgd():
            if rule.weight_decay:
                v["x"] = v["x"] * number(1.0 - eta * rule.weight_decay)
            v["x"] = plus(v["x"], -eta)
        case Momentum():
            w = 1.0 - rule.beta if rule.convention == "paper" else 1.0
            m = v["momentum"] * number(rule.beta)
            if rule.weight_decay:
                m = m + number(w * rule.weight_decay) * v["x"]
            v["momentum"] = plus(m, w)
            v["x"] = v["x"] + number(-eta) * v["momentum"]
        case SignSgd():
            sign = np.sign(plus(np.zeros_like(v["x"]), 1.0))
            if rule.weight_decay:
                v["x"] = v["x"] * number(1.0 - eta * rule.weight_decay)
            v["x"] = v["x"] + number(-eta) * sign
        case AdaMM():
            estimate = plus(np.zeros_like(v["x"]), 1.0)
            v["momentum"] = v["momentum"] * number(rule.beta1) + number(1 - rule.beta1) * estimate
            v["variance"] = v["variance"] * number(rule.beta2) + number(1 - rule.beta2) * (estimate * estimate)
            v["maximum"] = np.maximum(v["maximum"], v["variance"])
            ratio = v["momentum"] / (np.sqrt(v["maximum"]) + number(rule.epsilon))
            if rule.weight_decay:
                v["x"] = v["x"] * number(1.0 - eta * rule.weight_decay)
            v["x"] = v["x"] + number(-eta) * ratio
        case Whitened():
            move = plus(np.zeros_like(v["x"]), 1.0) * v["scale"]
            v["x"] = v["x"] + number(-eta) * move
            if step.last:
                square = np.square(move * v["scale"]) * number(1.0 - rule.nu)
                v["scale"] = v["scale"] / np.sqrt(square + number(rule.nu))
        case Normalised():
            sigma = float(np.std(g.astype(np.float64), ddof=1)) if P > 1 else 0.0
            v["x"] = plus(v["x"], -eta / sigma) if sigma else v["x"]
        case GridSgd():
            u = plus(np.zeros_like(v["x"]), -eta)
            v["x"] = v["x"] + (np.rint(u / rule.quantum) * rule.quantum).astype(u.dtype)
        case LowPrecision():
            names = ["x", *rule.rule.slots]
            if rule.rounding == "compensated":
                for name in names:
                    v[name] = v[name] + v[f"{name}.low"]
            _step(rule.rule, v, g, z, eta, step)
            for place, name in enumerate(names):
                exact = v[name]
                if rule.rounding == "stochastic":
                    words = reference.rounding_words(step_seed(step.seed), place, 0, exact.size)
                    v[name] = reference.narrow(exact, rule.dtype, words)
                else:
                    v[name] = _narrow(exact, rule.dtype)
                if rule.rounding == "compensated":
                    v[f"{name}.low"] = _narrow(exact - v[name], rule.dtype)
        case PooledSgd():
            assert isinstance(step.seed, Picks)
            for g_p, j in zip(g, step.seed.places, strict=True):
                v["sums"][j] += round(-eta / P * float(g_p) * 2**-rule.exponent)  # of Python: ties to even
            v["x"] = v["start"]
            for j in map(int, np.flatnonzero(v["sums"])):
                z_j = noise.direction(step.seed.pool, j, v["x"].size, distribution=step.distribution, backend="numpy")
                v["x"] = v["x"] + number(np.float32(v["sums"][j] * 2.0**rule.exponent)) * z_j.astype(v["x"].dtype)
        case _:
            assume(False)  # a new rule of the lab's, which has to be written out here


# What is measured ----------------------------------------------------------------------------------------------------


class MeasurementWatch(RoundWatch):
    """Looks on while rounds are played, and compares every scalar that is sent with what its client has to measure."""

    def __init__(self, case: Case, *, key: int | None = None, measured_by: Estimator | None = None) -> None:
        """A watch over clients whose losses are ``Wavy(case.d, i)``, and who may share a private key.

        Scalars are made of losses by ``measured_by``, or by the case's estimator.
        """
        self.case = case
        self.measured_by = None if measured_by is ESTIMATORS[case.estimator] else measured_by
        self.model = WrittenOut(case, key=key)
        self.steps: Counter[int] = Counter()  # the local steps that each client has measured
        self.last: dict[int, Reply] = {}  # what each client sent last
        self.seeds: list[Any] = []  # of the round before, which had so many directions:
        self.P_before = 0
        self.losses = [Wavy(case.d, i) for i in range(case.M)]

    def replied(self, client: AnyClient, plan: Plan, reply: Reply) -> None:
        """See ``RoundWatch``; LawBrokenError at the first scalar that is another."""
        i, case = client.id, self.case
        same(f"who answers client {i}'s plan, and of which round", (reply.client, reply.round), (i, plan.round))
        same(f"(K, P) of client {i}'s reply in round {plan.round}", reply.scalars.shape, (plan.K, plan.P))
        same(f"type of client {i}'s reply in round {plan.round}", reply.scalars.dtype, np.dtype(case.aggregation.dtype))
        path = [self.model]  # the models at which it must have measured
        for k, (seed, g) in enumerate(zip(plan.seeds, reply.scalars, strict=True)):
            place = _Place(case, path[k], self.losses[i], self.steps[i] + k, measured_by=self.measured_by)
            wanted, tolerance = place.scalars(path[k].directions(seed, plan.P))  # as g, (P,)
            right = np.abs(g.astype(np.float64) - wanted) <= tolerance
            if case.signs:  # rounding may turn those of differences that are next to nothing
                right = (g == np.where(wanted >= 0, 1, -1)) | (np.abs(wanted) <= tolerance)
            if not right.all():
                p = int(np.flatnonzero(~right)[0])
                says = f"g of client {i} in round {plan.round}, local step {k} of {plan.K}, direction {p} of {plan.P}"
                line = f"{says}: {g[p]:.9g} is not {np.sign(wanted[p]) if case.signs else wanted[p]:.9g}"
                within = "" if case.signs else f" within {tolerance[p]:.2g}"
                # The first mistake that gives this scalar, in words; signs agree with too many.
                mistakes = () if case.signs else self._mistakes(plan, reply, path, k, p)
                alike = (words for words, other, tolerated in mistakes if abs(float(g[p]) - other) <= tolerated)
                perhaps = "".join(f"; it agrees with {words}" for words in itertools.islice(alike, 1))
                raise LawBrokenError(line + within + perhaps)
            if k + 1 < plan.K:
                path.append(path[k].after_local_step(seed, g, plan.eta))
        self.steps[i] += plan.K
        self.last[i] = reply

    def closed(self, record: RoundRecord) -> None:
        self.model.apply(record)
        self.seeds, self.P_before = list(record.seeds), record.P

    def _mistakes(
        self, plan: Plan, reply: Reply, path: list[WrittenOut], k: int, p: int
    ) -> Iterator[tuple[str, float, float]]:
        """Mistakes of a client, in words, with what each gives for g_p of local step k, and within which tolerance."""
        case, i, P = self.case, reply.client, plan.P
        t = self.steps[i] + k  # counted from the client's first
        x = path[k]

        def at(
            model: WrittenOut = x, client: int = i, step: int = t, seed: Any = plan.seeds[k], q: int = p, **other: Any
        ) -> tuple[float, float]:
            measured_by = None if "estimator" in other else self.measured_by  # what a named one gives is sent as it is
            place = _Place(case, model, self.losses[client], step, measured_by=measured_by, **other)
            wanted, tolerance = place.scalars(x.directions(seed, P))
            return float(wanted[q]), float(tolerance[q])

        right, rounding = at()
        if self.measured_by:
            yield "what is measured, before that is made of it which is to be sent", *at(estimator=case.estimator)
            apart = path[0]  # where the local steps lead that are taken by what is measured
            for n in range(k):
                place = _Place(case, apart, self.losses[i], t - k + n)
                measured = place.scalars(apart.directions(plan.seeds[n], P))[0].astype(np.float32)
                apart = apart.after_local_step(plan.seeds[n], measured, plan.eta)
            wanted, tolerance = at(model=apart)
            words = "what it sends if its local steps are taken by what it measured, and not by what it sent"
            yield words, wanted, 8 * tolerance  # the scalars of the steps before have errors too
        for words, factor in {"the sign turned": -1, "a factor of 2": 2, "a factor of 1/2": 0.5}.items():
            yield f"the right number with {words}", right * factor, 2 * rounding
        yield "the right number divided by P once more", right / P, rounding
        if case.rule.scaling:
            yield "what is measured along z, which is not multiplied by s", *at(scale=1.0)
        for q in range(P):
            if q != p:
                yield f"that of direction {q}", *at(q=q)
        for n, seed in enumerate(plan.seeds):
            if n != k:
                yield f"what is measured along the direction of local step {n}", *at(seed=seed)
        if self.P_before >= P:  # a round of fewer directions may have no seed for this one
            for seed in self.seeds:
                yield f"what is measured along a direction of round {plan.round - 1}", *at(seed=seed)
        if k:
            yield "what is measured at the x of the round's start", *at(model=path[0])
        yield "what is measured at x_0", *at(model=WrittenOut(case))
        after = x.after_local_step(plan.seeds[k], reply.scalars[k], plan.eta)
        yield "what is measured at x after this local step", *at(model=after)
        for step in dict.fromkeys([t - 1, t + 1, k, 0, *range(t + 4)]):
            if step not in (t, -1):
                yield f"what is measured on the data of its local step {step}, not {t}", *at(step=step)
                yield f"the difference between the data of its local steps {t} and {step}", *at(other_end=step)
                yield f"the difference between the data of its local steps {step} and {t}", *at(step=step, other_end=t)
        for j in range(case.M):
            if j != i:
                yield f"what is measured with the loss of client {j}", *at(client=j)
        for mu in (case.mu / 2, case.mu * 2):
            wanted, tolerance = at(mu=mu)
            yield f"what is measured with μ = {mu}", wanted, tolerance
            times = mu / case.mu
            yield f"the difference of points μ = {mu} away over {case.mu}", wanted * times, tolerance * times
        for estimator in ("forward", "central", "projection"):
            if estimator != case.estimator:
                yield f"what is measured by {estimator}", *at(estimator=estimator)
        for sent in [reply, *([self.last[i]] if i in self.last else [])]:
            for (n, q), g in np.ndenumerate(sent.scalars):
                if g and (sent.round, n, q) != (plan.round, k, p):
                    yield f"what it sent in round {sent.round} for local step {n}, direction {q}", float(g), 0.0


class _Place:
    """Where a client measures: a model, its loss, its local step; and how."""

    def __init__(
        self, case: Case, model: WrittenOut, loss: Wavy, step: int, measured_by: Estimator | None = None, **other: Any
    ) -> None:
        """Where it is measured; other than by the case and the model may be estimator, μ, s and ``other_end``.

        That is the local step of a difference's second value.
        """
        self.loss, self.step, self.measured_by = loss, step, measured_by
        self.unit = 2.0**-53 if model.vectors["x"].dtype == np.float64 else 2.0**-24
        self.estimator = case.estimator
        self.mu = case.mu
        self.scale = model.scale
        self.other_end = step
        vars(self).update(other)
        self.x = model.vectors["x"].astype(np.float64)

    def scalars(self, z: NDArray[np.float32]) -> tuple[_Floats, _Floats]:
        """g_p along each row of z (P, d), and by how much a right client's may differ, both (P,).

        Let u be the unit roundoff of the numbers that points are formed in, and let A_j bound |∂_j f|. A client rounds
        three times on the way to a point, each time by at most u(|x_j| + μ|z_j|): f is known there to 3u·size, with
        size = Σ_j A_j(|x_j| + μ|z_j|). In float64 f itself takes d products and sums and some more, which are less than
        (d + 64)2⁻⁵²(1 + size). A difference has two such errors, over μ or 2μ; a projection has one in every product
        and every sum, and none over μ. Last, g is rounded to float32.
        """
        u = z.astype(np.float64) * self.scale
        if self.measured_by is not None:
            return self._scalars_by(self.measured_by, u)
        if self.estimator == "projection":
            g, tolerance = self._slopes(u)
        else:
            apart = self.mu * (1 if self.estimator.startswith("forward") else 2)  # of the two points
            below = self.loss.values(self.x + (self.mu - apart) * u, self.other_end)
            g = (self.loss.values(self.x + self.mu * u, self.step) - below) / apart
            tolerance = 2 * self._error(self.mu, u) / apart
        return g, tolerance + 2.0**-23 * np.abs(g)

    @property
    def _bound(self) -> _Floats:
        """A_j, shape (d,)."""
        return cast("_Floats", np.abs(self.loss.waves).T @ (1 / (3 * self.loss.scales)))

    def _error(self, c: float, u: _Floats) -> _Floats:
        """By how much a right client's f at x + c u may differ, for each row of u."""
        size = np.abs(self.x) @ self._bound + abs(c) * np.abs(u) @ self._bound
        return 3 * self.unit * size + (self.x.size + 64) * 2.0**-52 * (1 + size)

    def _slopes(self, u: _Floats) -> tuple[_Floats, _Floats]:
        """⟨∇f(x), u_p⟩ and by how much a right client's may differ, before they are rounded to float32."""
        d, slopes = self.x.size, self.loss.gradient(self.x, self.step)
        terms = np.abs(slopes * u).sum(axis=1)
        size = float(self._bound @ np.abs(self.x))
        bent = np.abs(u @ self.loss.waves.T).sum(axis=1)  # how fast slopes turn with an error of x or of f
        tolerance = (d + 4) * self.unit * terms + (d + 64) * 2.0**-52 * (1 + size) * bent * self.loss.scales.max()
        return u @ slopes, tolerance

    def _scalars_by(self, estimator: Estimator, u: _Floats) -> tuple[_Floats, _Floats]:
        """The scalars that an estimator makes of the losses, and how far they move while each loss moves by its error.

        The losses, or slopes, are put to both ends of their errors, in every combination: what clips or rounds may
        give the next number then, and what adds scalars up may add all errors up.
        """
        points: list[Point] = [(0, 0.0)] if estimator.wants_slopes else estimator.points(len(u), self.mu)
        values = np.array(
            [self.loss.values((self.x + c * u[p])[None], self.step if c > 0 else self.other_end)[0] for p, c in points]
        )
        errors = np.array([float(self._error(c, u[p : p + 1])[0]) for p, c in points])
        slopes, slope_errors = self._slopes(u) if estimator.wants_slopes else (np.empty(0), np.empty(0))

        def sent(signs: _Floats) -> _Floats:
            moved = values + signs[: values.size] * errors
            turned = slopes + signs[values.size :] * slope_errors
            return np.asarray(estimator.combine(moved, turned, self.mu).g, dtype=np.float64)

        n = values.size + slopes.size
        corners: Any = itertools.product((-1.0, 1.0), repeat=n)
        if n > _CORNERS:
            corners = np.random.default_rng(0).choice((-1.0, 1.0), (2**_CORNERS, n))
        g = sent(np.zeros(n))
        moves = np.max([np.abs(sent(np.array(signs)) - g) for signs in corners], axis=0)
        return g, moves + 2.0**-22 * np.abs(g)


@law(draw_from.cases(), st.booleans(), st.sampled_from((False, False, False, True)), parts=("client",), stream=True)
def replies_are_measurements(implementation: Implementation, case: Case, pulls: bool, scaled: bool) -> None:
    """every scalar of every reply is measured along its own seed's direction, at the client's x after its local steps,
    on its own batch, with its own loss.
    """
    if scaled:  # a rule that multiplies directions, which is seldom drawn
        dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
        other = replace(case, rule=Whitened(0.5), dtype=dtype, seeding=Seeding.PER_STEP)
        case = other if implementation.supports(other) else case
    clients = [implementation.client(case, i, Wavy(case.d, i)) for i in range(case.M)]
    always = PullPolicy(bandwidth=1e15, replay_ns=1e9) if pulls else None  # who missed a record is sent the model
    watch = MeasurementWatch(case, measured_by=implementation.measured_by(case))
    play(implementation, case, clients=clients, policy=always, watch=watch)


@law(draw_from.cases(), parts=("server",), stream=True)
def records_are_of_their_rounds_replies(implementation: Implementation, case: Case) -> None:
    """a round's plans and its record have the rate, the number of directions and the seeds of that round, and the
    record's scalars are those of the replies that arrived.
    """
    played = play(implementation, case)
    for r, (round_, record) in enumerate(zip(case.rounds, played.records, strict=True)):
        seeds = draw_seeds(case.seeding, played.server.run_seed, r, case.K, case.P(r), case.pool)
        plans: dict[str, Plan | RoundRecord] = {f"client {i}'s plan of": played.heard[r, i][0] for i in round_.clients}
        for what, message in {**plans, "the record of": record}.items():
            same(f"seeds in {what} round {r}", list(message.seeds), list(seeds))
            wanted = r, case.eta(r), case.P(r), case.distribution
            says = message.round, message.eta, message.P, message.distribution
            same(f"round, rate, P and distribution in {what} round {r}", says, wanted)
        arrived = [played.heard[r, i][1].scalars for i in round_.clients if i not in round_.lost]
        columns = np.stack(arrived).reshape(len(arrived), -1).T
        # The mean of each scalar, of an exact sum, rounded once; of signs the majority's, 1 where as many have either.
        if arrived[0].dtype == np.int8:
            mean: ScalarArray = np.array([1 if column.sum() >= 0 else -1 for column in columns], np.int8)
        else:
            mean = np.array([math.fsum(column) / len(arrived) for column in columns], np.float32)
        same(f"scalars of round {r}", bits(record.scalars), bits(mean.reshape(arrived[0].shape)))
