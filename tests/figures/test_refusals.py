"""Frames that a figure cannot draw are refused by the name of what is wrong; recorded rows say what figures show."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from figures import spectra, theory
from figures.edge import edge
from figures.finetuning import accuracies, round_costs
from figures.style import method_styles
from tests.refusals import refuses

STYLES = method_styles(["FedAvg", "MeZO", "DeComFL"])


def frame(columns: str, **values: Any) -> pd.DataFrame:
    """A row with 1 in each column, or with what is given."""
    return pd.DataFrame([dict.fromkeys(columns.split(), 1.0) | values])


def of_spectra(**changes: pd.DataFrame) -> Any:
    frames = {
        "curves": frame("step bandwidth value density low high"),
        "single": frame("step value"),
        "kappas": frame("step value low high", kappa="signed"),
        "extremes": frame("step lambda_max lambda_min loss", **{"near zero": 0.9}),
    }
    return spectra.training_spectra(**(frames | changes), d=9, near=0.01)


def of_cells(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Any:
    known = "tuned accuracy error printed zero_shot calibrated_zero_shot majority"
    return accuracies(change(frame(known, panel="a task", series="FedAvg")), STYLES)


def of_edge(*, limits: str = "", **changes: pd.DataFrame) -> Any:
    frames = {
        "by_step": frame("series h share low high"),
        "lines": frame("knob at share low high"),
        "along": frame("run apart step test_loss push load"),
    }
    return edge(**(frames | changes), limits=dict.fromkeys(limits, (1.0, 2.0)))


@refuses(
    (
        lambda: of_spectra(kappas=frame("step value low high", kappa="mean")),
        "kappas must be among signed, positive, absolute, gauss-newton",
    ),
    (
        lambda: of_spectra(curves=frame("step bandwidth value density high")),
        "curves must have the columns .*, got none named low",
    ),
    (
        lambda: theory.dimension_free(*[frame("series d kappa")] * 3),
        "by_d must have the columns series, d, kappa, value, got none named value",
    ),
    (
        lambda: theory.speed_ups(frame("at series rounds", knob="m", noise="loud")),
        "noise of frame must be among σ, σ_G, got",
    ),
    (
        lambda: theory.step_sizes(frame("K m ratio stated corrected limit", binding="none")),
        "binding of frame must be among variance, drift, local_steps, smoothing, got",
    ),
    (
        lambda: theory.training(frame("panel series round value low high")[:0]),
        "frame must have at least one row, got 0",
    ),
    (
        lambda: of_cells(lambda own: own.drop(columns="panel")),
        "frame must have the columns panel, .*, got none named panel",
    ),
    (
        lambda: of_cells(lambda own: own.assign(series="odd")),
        r"series must be among FedAvg, MeZO, DeComFL, got \['odd'\]",
    ),
    (lambda: of_cells(lambda own: own[:0]), "frame must have at least one row"),
    (
        lambda: round_costs(frame("d bytes", series="FedAvg", printed=False), {"odd": (0.0, 1.0)}, STYLES),
        r"series must be among FedAvg, MeZO, DeComFL, got \['odd'\]",
    ),
    (lambda: of_edge(along=frame("run apart step test_loss load")), "along must have the columns .* none named push"),
    (lambda: of_edge(by_step=frame("series h share low high")[:0]), "by_step must have at least one row"),
    (
        lambda: of_edge(by_step=pd.concat([frame("h share low high", series=name) for name in "abcd"])),
        "series of by_step must be at most 3",
    ),
    (lambda: of_edge(limits="abc"), "limits must be at most 2"),
)
def test_what_cannot_be_drawn_is_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()
