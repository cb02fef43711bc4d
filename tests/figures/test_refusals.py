"""What a figure would leave out in silence is refused by its name."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from figures import spectra, theory
from figures.edge import edge
from figures.finetuning import accuracies, round_costs
from figures.runs import run_curves
from figures.style import method_styles
from tests.cases import refuses

STYLES = method_styles(["FedAvg", "MeZO", "DeComFL"])
OF_STYLES = r"series must be among FedAvg, MeZO, DeComFL, got \['odd'\]"


def frame(**values: Any) -> pd.DataFrame:
    return pd.DataFrame([values])


def of_spectra() -> Any:
    empty = pd.DataFrame()
    return spectra.training_spectra(empty, empty, frame(kappa="mean"), empty, d=9, near=0.01)


def of_edge(names: str, limits: str = "") -> Any:
    return edge(pd.DataFrame({"series": [*names]}), frame(), frame(), limits=dict.fromkeys(limits, (1.0, 2.0)))


@refuses(
    (of_spectra, "kappas must be among signed, positive, absolute, gauss-newton"),
    (lambda: theory.speed_ups(frame(knob="M")), "knob of frame must be among m, P, K, got"),
    (lambda: theory.step_sizes(frame(K=1, binding="none")), "binding of frame must be among variance, drift, "),
    (lambda: theory.training(frame(series="odd")), "series of frame must be among measured, κ equal eigenvalues, "),
    (lambda: accuracies(frame(series="odd"), STYLES), OF_STYLES),
    (lambda: round_costs(frame(series="FedAvg"), {"odd": (0.0, 1.0)}, STYLES), OF_STYLES),
    (lambda: run_curves(frame(label="a", seed=0)), "frame must have the columns label, .*, got none named round"),
    (lambda: of_edge("abcd"), "series of by_step must be at most 3"),
    (lambda: of_edge("a", limits="abc"), "limits must be at most 2"),
)
def test_what_cannot_be_drawn_is_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()
