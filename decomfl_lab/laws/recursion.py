"""The paper's recursion written out in numpy: the model that whoever follows the records must hold, to the bit."""

from typing import Any

import numpy as np
import torch
from hypothesis import assume

from decomfl_lab import noise
from decomfl_lab.engines.base import wide_dtype
from decomfl_lab.laws.contract import Case
from decomfl_lab.methods.fzoo import Normalised
from decomfl_lab.methods.hiso import Whitened
from decomfl_lab.noise import Program, reference
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import Picks, StepSeed, keyed, step_seed, stream_of
from decomfl_lab.replicas.pool_sums import PooledSgd
from decomfl_lab.replicas.rules import AdaMM, GridSgd, LowPrecision, Momentum, Sgd, SignSgd, Step, UpdateRule

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
        self._made: dict[tuple[StepSeed, int], _Vector] = {}

    def directions(self, seed: StepSeed, P: int) -> _Vector:
        """z_p of a local step, float32 (P, d); those of the last few steps are kept."""
        if (seed, P) not in self._made:
            if len(self._made) > self.case.K:
                self._made.clear()
            streams = [stream_of(keyed(seed, self.key), p) for p in range(P)]
            of, d = self.case.distribution, self.case.d
            z = [noise.direction(*at, d, distribution=of, backend=self.backend) for at in streams]
            self._made[seed, P] = np.stack(z)
        return self._made[seed, P]

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
