"""What docs/derivatives.md says of torch is so: each function that it lists is wrong by the page's own check."""

import re
from typing import Any

import pytest
import torch
from sybil import Document
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

from decomfl_lab.objectives.trials.culprit import OF_TORCH, Order
from tests.docs.blocks import ROOT, Blocks

PAGE = ROOT / "docs/derivatives.md"
WRONG = 0.01
INDEX = torch.tensor([0, 1, 1, 2])


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64) + 0.1


def normal(mean: Tensor) -> Tensor:
    torch.manual_seed(0)
    return torch.normal(mean, 1.0)


def cut(x: Tensor, w: Tensor) -> Tensor:
    return functional.linear_cross_entropy(
        x, w, INDEX[:3], options=LinearCrossEntropyOptions(allow_retain_graph=True, batch_chunk_size=2)
    )


CALLS: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "_weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), (drawn(3, 4), drawn(3, 1))),
    "linear_cross_entropy(options)": (cut, (drawn(3, 4), drawn(5, 4))),
    "view(dtype)": (lambda w: torch.view_as_real(w.view(torch.complex128) ** 2), (drawn(3, 2),)),
    "normal": (normal, (drawn(3),)),
    "embedding(padding_idx)": (lambda w: functional.embedding(INDEX, w, padding_idx=1), (drawn(3, 4),)),
    "embedding(scale_grad_by_freq)": (
        lambda w: functional.embedding(INDEX, w, scale_grad_by_freq=True),
        (drawn(3, 4),),
    ),
    "as_strided_scatter": (lambda x, s: x.as_strided_scatter(s, (2, 2), (2, 1)), (drawn(6), drawn(2, 2))),
    "scatter_reduce(prod)": (lambda x, s: x.scatter_reduce(0, INDEX, s, "prod"), (drawn(3), drawn(4))),
}
for _name in OF_TORCH:
    if _name.startswith("special_"):
        _own = getattr(torch.special, _name.removeprefix("special_"))
        CALLS[_name] = (_own if "polynomial" not in _name else lambda x, own=_own: own(x, 3), (drawn(4),))


@pytest.fixture(scope="module")
def off() -> Any:
    document = Document.parse(str(PAGE), Blocks())
    for example in document.examples():
        example.evaluate()
    return document.namespace["off"]


@pytest.mark.parametrize("name", OF_TORCH)
def test_what_is_listed_is_wrong_in_this_torch(name: str, off: Any) -> None:
    function, points = CALLS[name]
    torch.manual_seed(0)
    first, second = off(function, *points)
    found = {Order.FIRST: first, Order.SECOND: second, Order.FORWARD: 0.0}
    order = OF_TORCH[name][0]
    if order is Order.FORWARD:  # by a difference of values along ones
        ways = tuple(map(torch.ones_like, points))
        high, low = (function(*(x + c * way for x, way in zip(points, ways, strict=True))) for c in (1e-5, -1e-5))
        difference = (high - low) / 2e-5
        found[order] = float((torch.func.jvp(function, points, ways)[1] - difference).norm() / difference.norm())
    assert found[order] > WRONG, f"torch {torch.__version__} has mended {name}: take it out of OF_TORCH and of the page"
    assert all(found[other] < WRONG for other in (Order.FIRST,) if order is not other), (
        "a derivative before it is wrong"
    )


def test_the_page_lists_what_a_refusal_names() -> None:
    rows = re.findall(r"^\| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = set(re.findall(r"`([a-z_]+(?:\([a-z_]+\))?)`", "".join(rows))) - {"weight_norm"}
    assert told == {name for name in OF_TORCH if not name.startswith("special_")}
