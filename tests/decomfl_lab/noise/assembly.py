"""Code of ``noise.triton_kernels`` compiled for a GPU that need not be there."""

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decomfl_lab.noise import triton_kernels
from decomfl_lab.noise.triton_kernels import OPTIONS, WARP, register_dtype

_NAMES: Final = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}

_POINTERS: Final = {
    **dict.fromkeys(("sums", "totals", "terms"), "*fp64"),
    **dict.fromkeys(("table", "broken"), "*i64"),
    **dict.fromkeys(("coefficients", "scales"), "*fp32"),
}


def assembly(
    kernel: str,
    dtypes: Sequence[torch.dtype] = (),
    *,
    aligned: bool = True,
    fused: bool = False,
) -> str:
    """The PTX of what ``triton_gpu`` launches on NVIDIA's Hopper, compiled here and now; no GPU is needed.

    Args:
        kernel: Name of a kernel of ``noise.triton_kernels``.
        dtypes: Types of its tensors that may have several: of a program's in its order, of ``vectors``, of ``points``
            and ``x``.
        aligned: Compile for a program's tensors that begin at multiples of 16 bytes.
        fused: Allow contraction to fused multiply-adds, which is wrong here: to see what it would change.
    """
    function = getattr(triton_kernels, kernel)
    names = [f"*{_NAMES[dtype]}" for dtype in dtypes]
    types: dict[str, Any] = {**_POINTERS, "memory": tuple(names), "values": f"*{_NAMES[register_dtype(dtypes)]}"}
    if names:
        types |= {"vectors": names[0], "points": names[0], "x": names[-1]}
    signature = {p.name: "constexpr" if p.is_constexpr else p.annotation_type or types[p.name] for p in function.params}
    constants = {p.name: p.default for p in function.params if p.is_constexpr}
    count = len(dtypes) if kernel == "run_program" and aligned else 0
    source = ASTSource(function, signature, constants, {(0, n): [["tt.divisibility", 16]] for n in range(count)})
    options = {**(WARP if kernel == "tile_products" else OPTIONS), "enable_fp_fusion": fused}
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
