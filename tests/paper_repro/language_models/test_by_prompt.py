"""κ by layer from one gradient a prompt, beside the dense matrix."""

from pathlib import Path

import pytest
import torch

from hessian import CurvatureOptions, GaussNewtonOperator
from hessian.trained_models import from_task
from paper_repro.language_models import by_prompt
from tests.decomfl_lab.language.tiny import save_opt
from tests.decomfl_lab.language.toy import write_sst2


@pytest.mark.thorough
def test_every_layer_has_the_spectrum_of_its_block(tmp_path: Path) -> None:
    folder, files = save_opt(tmp_path / "opt"), write_sst2(tmp_path / "sst2")
    trained = from_task("sst2", model=str(folder), files=str(files))
    # A layer at a time.
    rows = {row["layer"]: row for row in by_prompt.exact_by_layer(trained, depth=5, examples=4, memory=1)["rows"]}
    whole = rows.pop("all")
    assert whole["trace"] == pytest.approx(sum(row["trace"] for row in rows.values()))
    assert max(row["norm"] for row in rows.values()) < whole["norm"] < sum(row["norm"] for row in rows.values())
    name = "module.model.decoder.final_layer_norm"
    (f,) = trained.mean_loss(CurvatureOptions(parameters=name, trust=True), examples=4)
    G = GaussNewtonOperator(f)
    eigenvalues = torch.linalg.eigvalsh(torch.stack([G.matvec(e) for e in torch.eye(G.d)]).double())
    trace, norm = float(eigenvalues.sum()), float(eigenvalues.max())
    found = rows[name]
    assert [found["trace"], found["norm"], found["kappa"]] == pytest.approx([trace, norm, trace / norm], rel=1e-4)
