"""The picture of a κ: what stands on the axes is what was measured."""

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from hessian import effective_rank, spectral_density
from hessian.kappa.picture import picture
from tests.hessian.spectra import rotated

VALUES = torch.cat([torch.tensor([40.0, 25.0, 11.0, -4.0]), torch.linspace(0.4, 1.0, 196)]).double()


def lines_of(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.get_lines()}


def mass(ax: Axes) -> float:
    """The number of eigenvalues under the curve: a single one is a Gaussian of height 1, a window wide."""
    x, y = lines_of(ax)["eigenvalues nearby (quadrature)"]
    u = ax.xaxis.get_transform().transform(np.array(x))
    return float(np.trapezoid(y, u)) / ((u[-1] - u[0]) / 90 * np.sqrt(2 * np.pi))


def test_the_eigenvalues_stand_where_they_are_and_the_curve_counts_all_of_them() -> None:
    result = effective_rank(rotated(VALUES), seed=0, rtol=0.02)
    figure = picture(result, caption="Model: made up.")
    ax = figure.axes[0]
    heads, heights = lines_of(ax)["single eigenvalues"]
    assert np.array(heads)[[0, -3, -2, -1]] == pytest.approx([-4.0, 11.0, 25.0, 40.0], rel=1e-3)
    assert set(heights) == {1.0}
    assert mass(ax) == pytest.approx(200, rel=0.02)
    assert lines_of(ax)["_norm"][0] == [result.norm] * 2
    of_density = picture(result, spectral_density(rotated(VALUES))).axes[0]
    assert mass(of_density) == pytest.approx(200, rel=0.02)
    assert "range of the probes" in of_density.get_legend_handles_labels()[1]
    texts = [*figure.texts, *(text for each in figure.axes for text in each.texts)]
    words = " ".join([*(text.get_text() for text in texts), figure.get_suptitle()])
    for part in (str(result), f"‖H‖₂ = {result.norm:.4g}", "dense, d = 200", "Model: made up."):
        assert part in words


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_kappa_after_every_product_runs_into_its_interval(sign: float) -> None:
    result = effective_rank(rotated(sign * VALUES), seed=1)
    ax = picture(result).axes[1]
    products, kappas = lines_of(ax)["κ so far"]
    assert list(zip(products, kappas, strict=True))[-1] == (result.products, result.kappa)
    assert len(products) == len(result.history)
    dotted = [line.get_ydata()[0] for line in ax.get_lines() if line.get_linestyle() == ":"]  # type: ignore[index]
    assert dotted == list(result.interval)
    low, high = ax.get_ylim()
    assert low <= min(result.interval) <= max(result.interval) <= high
    assert low * high == 0  # from κ = 0 on
