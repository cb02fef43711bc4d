"""How much memory and time an estimate of κ takes, before it does."""

from hessian.kappa.settings import SCOUTS, Settings, span_words
from hessian.operators.operator import Around, Operator
from hessian.spectrum.forms import LARGE, PRODUCTS, SKETCH

PRODUCT = 2.0
"""Vectors (d,) that a product works in, itself included; measured: from 1.2 to 2.5, by the sizes of the layers."""

USUAL = 12  # Lanczos vectors that most networks take


def held(operator: Operator, basis: int) -> dict[str, float]:
    """What is held, in vectors (d,), with so many Lanczos vectors, beside graphs and activations of a piece of data."""
    # Five products are kept in half of the digits, or a sketch of each.
    kept = PRODUCTS * SKETCH / operator.d if operator.d >= LARGE else (PRODUCTS - 1) / 2
    vectors = {"Lanczos vectors": float(basis), "a product": PRODUCT, "a probe": 1.0, "kept of products": kept}
    while isinstance(operator, Around):
        operator = operator.inner
    objective = getattr(operator, "objective", None)
    if objective is None:
        return vectors
    is_shared = objective.module.get_parameter(objective.names[0]).data_ptr() == objective.x.data_ptr()
    return {"model and point": 1.0 if is_shared else 2.0} | vectors


def memory_of_an_estimate(operator: Operator, settings: Settings) -> str:
    """The forecast of memory, in words."""
    size = operator.d * operator.dtype.itemsize / 1e9
    usual, most = min(USUAL, settings.basis), min(settings.basis, operator.d)
    vectors = held(operator, usual)
    parts = ", ".join(f"{name} {size * count:.2g}" for name, count in vectors.items())
    words = f"memory: {size * sum(vectors.values()):.2g} GB with {usual} Lanczos vectors ({parts})"
    return f"{words}, {size * sum(held(operator, most).values()):.2g} with {most}, beside graphs and activations"


def time_of_an_estimate(pace: float, settings: Settings, d: int) -> str:
    """The forecast of time by the seconds of a product, in words."""
    least = SCOUTS + 4 if settings.products is None else settings.products
    ends = dict.fromkeys(min(products, d) for products in (least, settings.limit))  # one where they are equal
    spans = [span_words(products * pace) for products in ends]
    counts = " to ".join(f"{products:,}" for products in ends)
    return f"time: {pace:.2g} s a product, so {' to '.join(spans)} for {counts} products"
