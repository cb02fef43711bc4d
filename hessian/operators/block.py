"""A diagonal block of a matrix: H restricted to some of the elements of x."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hessian.operators.operator import Around, Operator, digest


class BlockOperator(Around):
    """S H Sᵀ, S the rows of the identity at some places of x. A product costs one with H, and two vectors of its size.

    It has the name of H, as the block of a positive semi-definite matrix is one too.
    """

    def __init__(self, inner: Operator, places: Sequence[slice]) -> None:
        """The block of ``inner`` at these places, each with a beginning and an end within its d elements."""
        super().__init__(inner)
        self.places = tuple(places)
        self.sizes = [place.stop - place.start for place in places]
        self.d = sum(self.sizes)

    def matvec(self, v: Tensor) -> Tensor:
        """See ``Operator``."""
        product = self.inner.matvec(self._whole(v))
        return torch.cat([product[place] for place in self.places])

    def quad(self, v: Tensor) -> float:
        """See ``Operator``."""
        return self.inner.quad(self._whole(v))

    def fingerprint(self) -> str:
        """See ``Operator``."""
        return digest(f"{self.places} {self.inner.fingerprint()}")

    def _whole(self, v: Tensor) -> Tensor:
        """The vector Sᵀv: v at the places, 0 elsewhere."""
        whole = v.new_zeros(self.inner.d)
        for place, part in zip(self.places, v.split(self.sizes), strict=True):
            whole[place] = part
        return whole
