"""HiSo: directions whitened by a diagonal that everybody rebuilds from the records."""

from dataclasses import dataclass
from typing import Any, ClassVar

from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.noise import SCRATCH, Program
from decomfl_lab.options import option
from decomfl_lab.replicas.rules import Step, UpdateRule, add_estimate


@dataclass(frozen=True)
class Whitened(UpdateRule):
    """ZO-SGD along u = s ⊙ z with s = h^(-1/2), elementwise, h a running mean of squared steps.

        S = (1/P) Σ_p g_p z_p,   G = s ⊙ S,   x ← x − ηG,   in the last step of a round s ← s / √(ν + (1 − ν)(s ⊙ G)²)

    The last is h ← νh + (1 − ν)G² in terms of s, which makes a direction one product. s is 1 at the start.
    """

    nu: float = 0.95  # ν in [0, 1)

    slots = ("scale",)  # s
    scaling = "scale"

    def start(self, slot: str) -> float:  # noqa: ARG002
        return 1.0

    def emit(self, program: Program, step: Step) -> None:
        program.fill(SCRATCH, 0.0)
        add_estimate(program, SCRATCH, step, 1.0)
        program.multiply(SCRATCH, "scale")
        program.add("x", SCRATCH, -step.eta)
        if step.last:
            program.multiply(SCRATCH, "scale")
            program.multiply(SCRATCH, SCRATCH)
            program.scale(SCRATCH, 1.0 - self.nu)
            program.offset(SCRATCH, self.nu)
            program.square_root(SCRATCH)
            program.divide_into(SCRATCH, "scale")
            program.copy("scale", SCRATCH)


@dataclass(frozen=True, kw_only=True)
class HiSo(DeComFL):
    """DeComFL along directions whitened by a diagonal of squared steps.

        client:  g_{i,r,p}^k = (f_i(x + μ u) − f_i(x − μ u)) / 2μ,   u = z_{r,p}^k / √h_r elementwise
        all:     x ← x − ηG,   G = (1/P) Σ_p g_p u_p,   k = 1..K;   h_{r+1} = ν h_r + (1 − ν) G²,   h_0 = 1

    h is a function of the records, so nothing more is sent. It follows the averaged scalars of a round's last step.

    Source: Li, Ying, Liu, Dong and Yang, "Converge faster, talk less: Hessian-informed federated zeroth-order
    optimization" (HiSo), ICLR 2026; h is kept as s = 1/√h.
    """

    name: ClassVar[str] = "hiso"

    nu: float = option(
        0.95,
        "The share ν of the past in the running mean h of squared steps, in [0, 1).",
        "optimizer",
        symbol="ν",
        ge=0,
        lt=1,
    )
    lean: ClassVar[bool] = False  # type: ignore[misc]
    rule: ClassVar[Any] = property(lambda self: Whitened(self.nu))  # type: ignore[misc]
