"""The parts of the report: by name, in their order, and what is to be known of some."""

from typing import Final

from paper_repro.language_models import llm, sizes, smollm2
from paper_repro.parts import audit, census, fig2, fig3, hessian, kernels, memory, projection, table1, theory, topk
from paper_repro.parts.stability import edge
from paper_repro.workflow.part import Part

PARTS: dict[str, Part] = {
    "fig2": fig2,
    "fig3": fig3,
    "projection": projection,
    "edge": edge,
    "topk": topk,
    "table1": table1,
    "llm": llm,
    "smollm2": smollm2,
    "memory": memory,
    "hessian": hessian,
    "census": census,
    "kernels": kernels,
    "sizes": sizes,
    "theory": theory,
    "audit": audit,
}
"""The parts by name, in the order of the report."""
PARTIAL: Final = ("fig2", "fig3", "projection", "edge", "topk", "table1", "smollm2", "census", "kernels")
"""Parts that can be drawn while some of their runs are not finished."""
DEAREST: Final = ("fig2", "theory", "fig3", "hessian", "llm", "edge")
"""The parts that take longest to draw."""
