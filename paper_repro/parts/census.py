"""A census of κ: networks that exist, at several moments of their training, by every reading, with intervals."""

import importlib.util
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from decomfl_lab.datasets.images import DATA_SETS, at_hand
from decomfl_lab.files import write_atomically
from decomfl_lab.language.opt import SIZES
from decomfl_lab.progress import Progress
from decomfl_lab.provenance import provenance
from figures.spectra import census_figure
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.layers import by_layer
from hessian.kappa.result import EffectiveRank
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.operator import Operator
from hessian.operators.options import CurvatureOptions
from paper_repro.language_models import smollm2
from paper_repro.language_models.language import pretraining
from paper_repro.parts.census_networks import SHIPPED, TASK, TONES, VERBALIZERS, VOCABULARY, language, trained
from paper_repro.parts.census_training import SEED, training
from paper_repro.workflow.data import digest_named, missing, task_facts
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import SCALES, Sizes

CONFIDENCE: Final = 0.95
ALL: Final = "all"
"""The layer of a row that is about the whole network."""
SHIPPED_MOMENT: Final = "as shipped"
_READINGS: Final = {
    "signed": (HessianOperator, "signed"),
    "positive": (HessianOperator, "positive"),
    "absolute": (HessianOperator, "absolute"),
    "gauss-newton": (GaussNewtonOperator, "signed"),
}
_COSTS: Final = {"logistic": 0.1, "mlp": 0.1, "resnet20-bn": 16.0, smollm2.NAME: 500.0, "efficientnet-lite0": 300.0}
"""What an example takes, in those of the MNIST CNN; of the others it is about 5."""


def jobs(options: Options) -> list[Work]:
    """A work for each network, moment and number of examples; what cannot be had here is left out."""
    size = options.scale.census
    works = []
    for model, data, loss in size.trained:
        if not at_hand(data):
            continue
        begins = training(model, data, loss, size)
        measured = partial(_work, size, model, data, loss, needs=begins)
        works += [measured(steps=steps, urgency=int(steps != size.steps[-1])) for steps in size.steps]
        if (model, data) in size.closer and loss == "cross-entropy":
            works += [measured(steps=size.steps[-1], n=n, urgency=2) for n in size.ladder]
            works += [measured(steps=size.steps[-1], layers=True, urgency=2)]
    # The scale full has recipes of none, since its language models are the hub's elsewhere.
    recipes = options.scale.pretrained or SCALES["default"].pretrained
    for name in size.language:
        own = pretraining(recipes[name]) if name in recipes else None
        if missing([TASK], [name] if own else [], recipes) or (own is None and smollm2.weights() is None):
            continue
        measured = partial(_work, size, name, TASK, needs=own, urgency=0 if own else 3)
        works += [measured(loss=loss) for loss in (VERBALIZERS, VOCABULARY)]
        if (name, TASK) in size.closer:
            works += [measured(loss=VOCABULARY, n=n, urgency=2) for n in size.ladder]
    for name in size.shipped:
        own = SHIPPED[name]
        if all(map(importlib.util.find_spec, own.packages)) and own.data in (TONES, *filter(at_hand, DATA_SETS)):
            works.append(_work(size, name, own.data, own.loss, urgency=1))
    return works


def _work(
    size: Sizes,
    network: str,
    data: str,
    loss: str,
    *,
    steps: int | None = None,
    n: int = 0,
    layers: bool = False,
    needs: Work | None = None,
    urgency: int,
) -> Work:
    """κ of a network at a moment, in a work of its own, so that what is measured is kept."""
    usual = size.fewer.get(network, size.examples)
    n = n or usual
    moment = SHIPPED_MOMENT if steps is None else f"after {steps} steps"
    words = f"{network} on {data}, {loss}, {moment}, n = {n}{', by layer' if layers else ''}"
    return Work(
        title=f"census: {words}",
        function=_measured,
        arguments={
            "network": network,
            "data": data,
            "loss": loss,
            "steps": steps,
            "n": n,
            "products": size.fewer_products.get(network, size.products),
            "layers": layers,
            "begins": needs,
        },
        labels={
            "network": network,
            "data": data,
            "loss": loss,
            "moment": moment,
            "n": n,
            "usual": n == usual,
            "by_layer": layers,
        },
        needs=() if needs is None else (needs,),
        data=partial(_digest, data),
        layers=("hessian",),
        cost=10 * 4 * size.products * n * _COSTS.get(network, 5.0),
        urgency=urgency,
    )


def _digest(data: str) -> str:
    """The digest of data that are files; what is made here has none."""
    return task_facts(data).digest if data == TASK else "" if data not in DATA_SETS else digest_named(data)


def _measured(
    folder: Path,
    report: Report,
    network: str,
    data: str,
    loss: str,
    steps: int | None,
    n: int,
    products: int,
    layers: bool,
    begins: Work | None,
) -> Result:
    """κ by every reading, each kept in a file as soon as it is there."""
    begun = folder.parent / begins.key() if begins is not None else smollm2.weights()
    assert begun is not None
    if network in SHIPPED:
        found = SHIPPED[network].made()
    elif network in SIZES or network == smollm2.NAME:
        found = language(begun, loss)
    else:
        assert steps is not None
        found = trained(begun, network, data, loss, steps)
    (objective,) = found.mean_loss(CurvatureOptions(chunk=8 if data == TASK else 64), examples=n)
    tables = []
    for number, (reading, (matrix, part)) in enumerate(_READINGS.items()):
        path = folder / f"{reading}.csv"
        if layers and part != "signed":
            continue
        if not path.exists():
            began = time.monotonic()
            operator = matrix(objective)
            ranks = _ranks(operator, products, part, layers=layers)
            rows = [{"layer": layer, **_numbers(rank)} for layer, rank in ranks.items()]
            seconds = time.monotonic() - began
            write_atomically(path, pd.DataFrame(rows).assign(reading=reading, seconds=seconds).to_csv(index=False))
        tables.append(pd.read_csv(path, dtype={"layer": str}))
        report(Progress(number + 1, len(_READINGS), objective.value))
    rows = pd.concat(tables, ignore_index=True)
    return rows.assign(
        steps=math.nan if steps is None else steps, d=objective.d, loss_value=objective.value
    ), provenance(found.dataset)


def _ranks(operator: Operator, products: int, part: Any, *, layers: bool) -> dict[str, EffectiveRank]:
    """κ of the matrix, or of the block of each layer."""
    if layers:
        found = by_layer(operator, products=products, confidence=CONFIDENCE, seed=SEED)
        return {row.layer or "(model)": row.rank for row in found.rows}
    return {ALL: effective_rank(operator, part=part, products=products, confidence=CONFIDENCE, seed=SEED)}


def _numbers(rank: EffectiveRank) -> dict[str, float]:
    low, high = rank.interval
    return {
        "value": rank.kappa,
        "low": low,
        "high": high,
        "confidence": rank.confidence,
        "products": rank.products,
        "lambda_max": rank.lambda_max,
        "lambda_min": rank.lambda_min,
        "trace": rank.trace.value,
        "size": rank.d,
    }


# --- what is made of the rows -----------------------------------------------------------------------------------------


def last_moments(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a network, loss and reading, from the smallest d on: at its last moment, of as many examples as usual."""
    whole = rows[rows["layer"] == ALL]
    whole = whole[whole["steps"].isna() | (whole["steps"] == whole["steps"].max())]
    found: pd.DataFrame = whole[whole["usual"]].sort_values(["d", "network", "data", "loss"], kind="stable")
    return found


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure and the table of all networks at their last moments."""
    size = options.scale.census
    if rows.empty:
        return made("census", [], notes=["Not computed: no rows."])
    last = last_moments(rows)
    keys = ["network", "data", "loss", "d", "n", "loss_value"]
    shown = last.assign(κ=[f"{own.value:.3g} ({own.low:.3g} to {own.high:.3g})" for own in last.itertuples()])
    table = shown.pivot(index=keys, columns="reading", values="κ").reset_index().sort_values("d", kind="stable")
    words = options.scale.words("census", named=False)
    data = "; ".join(dict.fromkeys(str(each["data"]).split("; ")[0].partition(":")[0] for each in provenance))
    figure = partial(
        census_figure,
        rows[rows["layer"] == ALL],
        last,
        title="A census of κ: networks of today, by every reading",
        caption=caption("census", scale=words, networks=last.groupby(["network", "data"]).ngroups, data=data),
    )
    return made(
        "census",
        [],
        {"census": figure},
        {"census": table, "census-rows": rows},
        notes=notes("census", **vars(size)),
        table=table,
    )
