"""Compiled kernels that are kept on disk are those of the source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numba
import pytest

from decomfl_lab.engines.kernels import cnn as cnn_kernel
from decomfl_lab.engines.kernels import tiles
from decomfl_lab.noise import caching, numba_cpu


def locator(function: Any) -> Any:
    return function._cache._impl.locator


def test_a_change_in_any_file_of_kernels_has_every_kernel_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = (numba_cpu._run, tiles.multiply, cnn_kernel._losses)
    stamps = {locator(kernel).get_source_stamp() for kernel in kernels}
    assert len(stamps) == 1
    for folder in caching._KERNELS:
        shutil.copytree(Path(caching.__file__).parents[1] / folder, tmp_path / folder)
    monkeypatch.setattr(caching, "_PACKAGE", tmp_path)
    source = tmp_path / Path(tiles.__file__).relative_to(Path(caching.__file__).parents[1])
    for change in (b"", b"\n", b"\n\n"):
        source.write_bytes(source.read_bytes() + change)
        caching._digest.cache_clear()
        stamps.add(locator(kernels[0]).get_source_stamp())
    caching._digest.cache_clear()
    assert len(stamps) == 3  # the copy as it is, and two changes


def test_kernels_of_others_are_kept_as_numba_keeps_them() -> None:
    @numba.njit(cache=True)  # type: ignore[untyped-decorator]
    def twice(x: float) -> float:
        return 2 * x

    assert twice(1.5) == 3.0
    assert type(locator(twice)).__module__ == "numba.core.caching"
    assert type(locator(tiles.multiply)).__module__ == caching.__name__
