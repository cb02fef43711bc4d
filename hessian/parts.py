"""The parts of a symmetric matrix that κ can be asked of."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A function f of H: κ of that part of it is tr(f(H))/‖f(H)‖₂."""

    name: str  # what κ of it is called
    trace: str  # what that is the quotient of
    norm: str  # and by
    of: Callable[[Any], Any]  # the function f of an array or a tensor of eigenvalues
    which: str  # whose size ‖f(H)‖₂ is: of the eigenvalue of the largest magnitude, or of the largest
    share: float  # how much of ‖E‖_* an E that is added to H may change tr(f(H)) by


PARTS = {
    "signed": Part("κ", "tr(H)", "‖H‖₂", lambda values: values, "magnitude", 0.0),
    "positive": Part("κ₊", "Σ max(λ, 0)", "λ_max", lambda values: values.clip(0), "largest", 0.5),
    "absolute": Part("κ of |H|", "Σ|λ|", "‖H‖₂", abs, "magnitude", 1.0),
}
