"""FZOO: steps of normalised length, from one-sided differences along signs."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from decomfl_lab.errors import require_int
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.scalars import Perturbing
from decomfl_lab.noise import Program
from decomfl_lab.options import option
from decomfl_lab.replicas.rules import Step, UpdateRule, add_estimate


@dataclass(frozen=True)
class Normalised(UpdateRule):
    """ZO-SGD with the step over the spread of its scalars: x ← x − (η/(Pσ)) Σ_p g_p z_p.

        σ² = (1/(P − 1)) Σ_p (g_p − ḡ)²,   ḡ = (1/P) Σ_p g_p,   sums in double precision, rounded once

    There is no step where σ is 0, nor for P = 1.
    """

    def emit(self, program: Program, step: Step) -> None:
        from decomfl_lab.devices import on_host

        g = on_host(step.scalars).tolist()
        mean = math.fsum(g) / len(g)
        sigma = math.sqrt(math.fsum((g_p - mean) ** 2 for g_p in g) / max(len(g) - 1, 1))
        if sigma:
            add_estimate(program, "x", replace(step, scalars=on_host(step.scalars)), -step.eta / sigma)


@dataclass(frozen=True, kw_only=True)
class FZOO(DeComFL):
    """Steps over the spread of the losses, from P + 1 forward passes along random signs.

        client:  g_{i,r,p}^k = (f_i(x + μ z_{r,p}^k) − f_i(x)) / μ,   z_{r,p}^k random signs
        all:     x ← x − (η/(Pσ)) Σ_p g_p z_p,   σ the standard deviation of the P averaged scalars,   k = 1..K

    σ is a function of the record, so nothing more is sent. The division by μ cancels: σ is that of the losses over μ.
    A step's length has a finite variance for P ≥ 4 (docs/methods-theory.md).

    Source: Dang, Guo, Zhao, Ye, Zheng, Dai and Tsang, "FZOO: fast zeroth-order optimizer for fine-tuning large language
    models towards Adam-scale speed", ICLR 2026; of one agent there, here clients' scalars are averaged before that.
    """

    name: ClassVar[str] = "fzoo"

    distribution: str = option("rademacher", Perturbing.options()["distribution"].help)
    estimator: ClassVar[str] = "forward"  # type: ignore[misc]
    log_kappa: ClassVar[bool] = False  # type: ignore[misc]
    rule: ClassVar[Normalised] = Normalised()  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in (self.perturbations, *self.perturbation_schedule.values()):
            require_int("perturbations P for fzoo", number, 2)
