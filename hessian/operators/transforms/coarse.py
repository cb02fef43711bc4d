"""Products in fewer bits, TF32 or bfloat16: what they are off by is measured, and intervals have room for it."""

import math

from decomfl_lab.objectives.vectors import inner
from hessian.operators.operator import Around, Noise, Operator, digest
from hessian.operators.probes import probe

_TRIAL = 12  # stage of the probes that the noise is measured by
_PROBES = 3
_SURE = 3.0  # standard errors


class CoarseOperator(Around):
    """Ĥ = H + E, where E is what fewer bits do: of the values and vectors that are multiplied, weights among them.

    With Gaussian u_i, E‖Eu‖² = ‖E‖_F² and E[uᵀEu] = tr(E), whose variance is 2‖E‖_F² at most. So with n products of
    both, which no result counts,

        ‖E‖_F ≈ √(Σ‖Eu_i‖²/n),    |tr(E)| ≤ |Σ u_iᵀEu_i|/n + 3√(2/n)‖E‖_F
    """

    def __init__(self, coarse: Operator, exact: Operator, compute: str) -> None:
        """Measure what products of ``coarse`` (Ĥ) differ by from those of ``exact`` (H), which is not needed any more.

        ``compute`` is what products are in, for results: "bfloat16" or "tf32". InputError if one breaks its rules.
        """
        super().__init__(coarse, f"{coarse.name} in {compute}")
        squares, forms, whole = [], [], 0.0
        for i in range(_PROBES):
            u = probe(self, 0, _TRIAL, i)
            Hu = exact.matvec(u)
            whole += inner(Hu, Hu) / _PROBES
            Eu = coarse.matvec(u).sub_(Hu)
            squares.append(inner(Eu, Eu))
            forms.append(inner(u, Eu))
        size = math.sqrt(math.fsum(squares) / _PROBES)
        self.noise = Noise(abs(math.fsum(forms)) / _PROBES + _SURE * math.sqrt(2 / _PROBES) * size, size)
        share = size / math.sqrt(whole) if whole else 0.0
        self._remark = f"products in {compute} are off by {100 * share:.2g} %, for which intervals have room"

    def fingerprint(self) -> str:
        return digest(f"{self.name} {self.inner.fingerprint()}")

    @property
    def remarks(self) -> tuple[str, ...]:
        return (*super().remarks, self._remark)
