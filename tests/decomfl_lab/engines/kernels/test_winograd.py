"""Nets as one kernel, by their definition or through values of polynomials: the algebra, and what rounding costs."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.engines.kernels import cnn as cnn_kernel
from decomfl_lab.engines.kernels import winograd
from decomfl_lab.engines.kernels.cnn import Network, pixels
from decomfl_lab.engines.kernels.winograd import matrices, tile_size
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from tests.cases import rows_of


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_matrices_make_a_convolution_and_its_adjoints(kernel: int) -> None:
    back, g, b = (each.astype(np.float64) for each in matrices(kernel))
    rng = np.random.default_rng(kernel)
    m = 7 - kernel
    image, weights, slopes = (rng.standard_normal((n, n)) for n in (6, kernel, m))

    def convolution(image: Any, weights: Any) -> Any:
        shape = (kernel, kernel)
        return np.einsum("yxij,ij->yx", np.lib.stride_tricks.sliding_window_view(image, shape), weights)

    values, own = b @ image @ b.T, g @ weights @ g.T
    spread = back.T @ slopes @ back
    rounding = {"rtol": 0, "atol": 3e-6}  # of the matrices' own numbers
    np.testing.assert_allclose(back @ (own * values) @ back.T, convolution(image, weights), **rounding)
    padded = np.pad(slopes, kernel - 1)
    np.testing.assert_allclose(b.T @ (own * spread) @ b, convolution(padded, weights[::-1, ::-1]), **rounding)
    by_weights = np.einsum("yxij,ij->yx", np.lib.stride_tricks.sliding_window_view(image, (m, m)), slopes)
    np.testing.assert_allclose(g.T @ (values * spread) @ g, by_weights, **rounding)


@pytest.mark.parametrize(("kernel", "stride", "size", "m"), rows_of(__file__)["rows"])
def test_whole_tiles_of_square_kernels_go_through_values(
    kernel: tuple[int, int], stride: tuple[int, int], size: tuple[int, int], m: int
) -> None:
    assert tile_size(tuple(kernel), tuple(stride), *size) == m


def _through_values(network: Network) -> int:
    return int((network._tables[0]["kind"] == cnn_kernel._VALUES).sum())


NETS: list[tuple[tuple[int, ...], int, list[nn.Module]]] = [
    ((1, 28, 28), 1, [nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2)]),
    ((1, 28, 28), 1, [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]),
    ((1, 16, 16), 2, [nn.Conv2d(1, 5, 3), nn.Conv2d(5, 20, 3), nn.ReLU(), nn.Conv2d(20, 34, 3, padding=1, bias=False)]),
    ((16, 12, 20), 2, [nn.Conv2d(16, 7, 3, padding=1), nn.ReLU(), nn.Conv2d(7, 48, 5, padding=2), nn.MaxPool2d(3)]),
    (
        (1, 25, 25),
        2,
        [nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 17, 3, padding=1), nn.ReLU(), nn.Conv2d(17, 6, 5)],
    ),
    # By the definition alone.
    ((3, 9, 11), 0, [nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=1), nn.ReLU(), nn.Conv2d(5, 20, 2, bias=False)]),
    (
        (3, 9, 11),
        0,
        [nn.Conv2d(3, 5, 2), nn.ReLU(), nn.Conv2d(5, 34, (3, 2), (2, 1), 1), nn.ReLU(), nn.Conv2d(34, 9, 3)],
    ),
    ((2, 7, 7), 0, [nn.Conv2d(2, 17, 3), nn.MaxPool2d(2), nn.Conv2d(17, 3, 1, padding=2), nn.ReLU(), nn.MaxPool2d(3)]),
    ((1, 4, 4), 0, [nn.Conv2d(1, 2, 4)]),
    ((13,), 0, []),
]


def _clearly_decided(body: nn.Sequential, images: torch.Tensor) -> torch.Tensor:
    """The images at which no ReLU and no pooling is within rounding of deciding otherwise: there a gradient jumps."""
    values, margin = images.double(), torch.full((len(images),), torch.inf, dtype=torch.float64)
    for layer in copy.deepcopy(body).double():
        if isinstance(layer, nn.ReLU):
            margin = torch.minimum(margin, values.abs().flatten(1).amin(1))
        elif isinstance(layer, nn.MaxPool2d):
            size = layer.kernel_size
            windows = values.unfold(2, size, size).unfold(3, size, size).flatten(4)
            first, second = windows.topk(2).values.unbind(-1)
            # Zeros of a ReLU have no slope, and of equal numbers, as those beside a border, the first has it.
            gaps = torch.where((first > 0) & (first > second), first - second, torch.inf)
            margin = torch.minimum(margin, gaps.flatten(1).amin(1))
        values = layer(values)
    return images[margin > 1e-5]


@pytest.mark.parametrize(("in_shape", "count", "layers"), NETS)
@pytest.mark.parametrize("n", [1, 7, 37])
def test_rounding_is_that_of_torch(in_shape: tuple[int, ...], count: int, layers: list[nn.Module], n: int) -> None:
    """Losses and gradients through values are as near to float64's as torch's own float32, within a factor of four."""
    torch.manual_seed(n)
    for layer in (own for own in layers if isinstance(own, nn.Conv2d)):
        layer.reset_parameters()
    body = nn.Sequential(*layers, nn.Flatten())
    width = body(torch.zeros(1, *in_shape)).shape[1]
    module = nn.Sequential(*body, nn.Linear(width, 11, bias=False), nn.ReLU(), nn.Linear(11, 10))
    layout = Layout.of(module)
    images = torch.cat([_clearly_decided(module[:-1], torch.randn(n, *in_shape)) for _ in range(12)])[:n]
    labels = torch.randint(10, (n,))
    assert len(images) == n
    network, x = Network(module, layout, in_shape), layout.flatten(module)
    assert _through_values(network) == count
    memory, more = network.workspace(), network.slopes_workspace()
    for _ in range(2):  # what the first run leaves in the memory does not matter
        found = network.losses(x, pixels(images), labels.numpy(), memory)
        same, gradient = network.gradient(x, pixels(images), labels.numpy(), more)
    assert np.array_equal(same, found)

    def torchs(kind: torch.dtype) -> tuple[Any, Any]:
        losses = cross_entropy(module.to(kind)(images.to(kind)), labels, reduction="none")
        slopes = torch.autograd.grad(losses.sum(), list(module.parameters()))
        return losses.detach().double().numpy(), torch.cat([each.reshape(-1) for each in slopes]).double().numpy()

    (wide, wide_slopes), (single, single_slopes) = torchs(torch.float64), torchs(torch.float32)
    assert np.abs(found - wide).max() <= 4 * max(np.abs(single - wide).max(), 1e-7)
    error, usual = (np.linalg.norm(own - wide_slopes) for own in (gradient, single_slopes))
    assert error <= 4 * max(usual, 1e-7 * np.linalg.norm(wide_slopes))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_wrong_coefficient_is_caught(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of another point set spoils the algebra: the test above can fail."""
    right = winograd.matrices(3)
    spoilt = [each.copy() for each in right]
    spoilt[place][1, 1] *= 1 + 1e-4
    monkeypatch.setitem(globals(), "matrices", lambda _: spoilt)
    with pytest.raises(AssertionError):
        test_the_matrices_make_a_convolution_and_its_adjoints(3)


@pytest.mark.parametrize("model", ["cnn-mnist", "cnn-fashion"])
def test_the_papers_nets_go_this_way(model: str) -> None:
    module = build_model(model, seed=0, in_shape=(1, 28, 28), classes=10)
    assert _through_values(Network(module, Layout.of(module), (1, 28, 28))) == 1
