"""A root or a quotient alone, compiled for AMD's gfx942: ``test_triton`` counts what each takes."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decomfl_lab.noise.triton_kernels import OPTIONS


@triton.jit
def _alone(out, a, b, WHAT: tl.constexpr):
    at = tl.arange(0, 128)
    x, y = tl.load(a + at), tl.load(b + at)
    if WHAT == "sqrt_f32":
        z = tl.sqrt_rn(x)
    elif WHAT == "sqrt_f64":
        z = tl.sqrt(x)
    elif WHAT == "div_f32":
        z = tl.div_rn(x, y)
    elif WHAT == "div_f64":
        z = x / y
    else:
        z = x // y
    tl.store(out + at, z)


def alone(what: str) -> str:
    """The code of one operation, as sqrt_f32."""
    kind = {"f32": "*fp32", "f64": "*fp64", "i64": "*i64"}[what[-3:]]
    signature = {**dict.fromkeys(("out", "a", "b"), kind), "WHAT": "constexpr"}
    source = ASTSource(_alone, signature, {"WHAT": what})
    compiled = triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options=OPTIONS)
    return str(compiled.asm["amdgcn"])
