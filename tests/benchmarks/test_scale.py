"""The measurement of memory and time where d is large, on a small net."""

import pytest

from benchmarks import scale
from benchmarks.ways import libraries


@pytest.mark.parametrize("method", scale._runs(libraries.LargeProblem(1000), libraries.OURS, 6))
def test_what_is_measured_of_ours_ends_and_tells_its_products(method: str) -> None:
    found = scale._footprint(libraries.OURS, method, 1000, 6)
    assert found["products"] >= 2
    assert found["vectors"] is None  # too small to tell


@pytest.mark.parametrize("library", libraries.installed())
def test_a_product_and_an_estimate_of_every_library_are_measured(library: str) -> None:
    assert len(scale._runs(libraries.LargeProblem(1000), library, 6)) >= 3
    assert scale._footprint(library, "product", 1000, 6)["products"] == 2


def test_prices_are_of_one_gradient_and_all_products() -> None:
    gradient, *products = scale._prices(1000)
    assert gradient["gradients"] == 1
    assert {price["library"] for price in products} == {libraries.OURS, *libraries.installed()}
