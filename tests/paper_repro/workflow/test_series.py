"""What is run: the settings of the paper at full scale, and what is true of every part at every scale."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from decomfl_lab.runs.configuration import TrainConfig
from paper_repro.contents import PARTS
from paper_repro.language_models import llm, sizes
from paper_repro.parts import fig2, fig3
from paper_repro.workflow.data import TaskFacts, data_set
from paper_repro.workflow.options import READINGS
from paper_repro.workflow.part import Options
from paper_repro.workflow.runs import Job
from paper_repro.workflow.scales import SCALES, TASK_ROWS, Scale, changed
from paper_repro.workflow.series import PATTERNS, Series, configuration, from_toml
from tests.cases import rows_of, sampled
from theory.notation.printed import PARAMETERS, RATES, RESULTS, ROUNDS, model_terabytes

TRUTHS: Final = tomllib.loads(Path(__file__).with_name("settings.toml").read_text(encoding="utf-8"))
CURVES: Final = ("fig2", "fig3", "projection", "topk", "table1")


@pytest.fixture(autouse=True)
def _facts(at_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "task_facts", lambda task: TaskFacts(100, 0.5, "digest"))


def jobs(part: str, scale: Scale, device: str = "cpu") -> Any:
    return PARTS[part].jobs(Options(scale=scale, readings=READINGS, count="wire", device=device))


def runs(part: str, scale: Scale) -> Iterator[tuple[Mapping[str, Any], TrainConfig]]:
    """The runs of a part, each with what tells it from others."""
    for work in jobs(part, scale):
        given = {} if isinstance(work, Job) else work.arguments
        if part == "sizes":
            size, model = given["size"], given["model"]
            eta = size.etas.get(model, 1.0)
            yield from (({"model": model}, sizes.configuration(size, model, eta, seed)) for seed in size.seeds)
        elif "model" in given:  # of the theory
            yield (
                {"model": given["model"]},
                configuration(PATTERNS["theory"], {}, model=given["model"], rounds=given["size"].rounds),
            )
        elif "name" not in given:
            yield work.labels, given.get("config") or given.get("job", work).config


# --- the settings of the paper ----------------------------------------------------------------------------------------


def untrue(truth: Mapping[str, Any], of_part: Iterable[tuple[Mapping[str, Any], TrainConfig]]) -> list[Any]:
    """What runs have instead of what they are to have."""
    found = [config.to_dict() for labels, config in of_part if truth["where"].items() <= labels.items()]
    wrong = [(name, own[name]) for own in found for name, value in truth["has"].items() if own[name] != value]
    return wrong + [len(found)] * (len(found) != truth["runs"])


@pytest.mark.parametrize("part", TRUTHS)
def test_runs_have_the_settings_of_text_logs_and_scripts(part: str) -> None:
    of_part = {name: list(runs(part, scale)) for name, scale in SCALES.items()}
    for truth in TRUTHS[part]:
        assert untrue(truth, of_part[truth.get("scale", "full")]) == [], truth["where"]


@pytest.mark.parametrize(("change", "found"), rows_of(__file__)["changes"])
def test_a_setting_that_is_not_the_papers_is_found(change: str, found: list[Any]) -> None:
    scale, _ = changed(SCALES["full"], [f"fig2.{change}"])
    assert untrue(TRUTHS["fig2"][0], runs("fig2", scale)) == list(from_toml(found))


def test_fine_tuning_has_the_rounds_and_rates_in_print_and_those_that_costs_in_print_imply() -> None:
    size = SCALES["full"].llm
    for row, own in size.settings.items():
        cells = {task: cell for task, cell in TASK_ROWS.items() if task != "cb-two-way" or "LoRA" not in row}
        assert own == {task: (ROUNDS[row][cell], RATES[row][cell], 32) for task, cell in cells.items()}
    for model, own in size.first_order.items():
        unit = model_terabytes(500, PARAMETERS[model])
        implied = {task: 500 * round((RESULTS[model][cell][0].cost or 0.0) / unit) for task, cell in TASK_ROWS.items()}
        assert {task: tuning.rounds for task, tuning in own.items()} == implied


# --- every scale ------------------------------------------------------------------------------------------------------


def curve(job: Job) -> tuple[Any, ...]:
    """The curve and the seed of a run, whatever measured its scalars."""
    return job.config.seed, *(
        value for name, value in job.labels.items() if name not in ("estimator", "check", "method")
    )


@pytest.mark.parametrize(("part", "name", "device"), sampled(product(CURVES, SCALES, ["cpu", "cuda"]), 11))
def test_a_run_that_checks_another_differs_from_it_in_method_and_length_alone(
    part: str, name: str, device: str
) -> None:
    scale = SCALES[name]
    found = jobs(part, scale, device)
    checks = {curve(job): job for job in found if job.labels.get("check")}
    lines = {curve(job): job for job in found if not job.labels.get("check")}
    if part != "projection":  # whose two estimators check each other
        assert len(checks) + len(lines) == len(found) == len({job.title for job in found})
    for at, check in checks.items():
        one, other = check.config.to_dict(), lines[at].config.to_dict()
        different = {name for name in one.keys() & other.keys() if one[name] != other[name]}
        assert different <= {"method", "rounds"} | ({"eval_every"} if part == "table1" else set())
        if part in ("fig2", "fig3"):  # whole, of every seed and first where a GPU makes them cheap; else the last
            whole = device == "cuda"
            assert not whole or check.config.rounds == lines[at].config.rounds
            assert check.urgency == 0 if whole else check.urgency > max(job.urgency for job in lines.values())
    of_seeds: dict[Any, list[int]] = {}
    for (_, *series), job in lines.items():
        of_seeds.setdefault(tuple(series), []).append(job.urgency)
    assert all(first < min(others) for first, *others in of_seeds.values() if others and part != "projection")
    if part in ("fig2", "fig3") and scale.name == "full":
        plotted = [job for job in lines.values() if "DeComFL" in job.title and "as-written" not in job.title]
        checked = plotted if device == "cuda" else [job for job in plotted if job.config.seed == 0]
        assert checks.keys() == {curve(job) for job in checked}


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_scale_says_what_it_is(scale: Scale) -> None:
    said = [llm.scale_words(scale), *map(scale.words, ("fig2", "fig3", "projection"))]
    assert {"not the paper's" in words for words in said} == {scale.name != "full"}
    assert all(10 * scale.of(part).m == scale.of(part).M for part in CURVES)
    assert {job.config.data for job in jobs("fig3", scale)} == {data_set("fashion-mnist")}
    here = fig3.settings_table(scale, "mnist").set_index("setting")["here"]
    assert ("200 from round 2000" in here["P"]) == (scale.fig3.rounds > 2000)
    here = llm.settings_table(scale).set_index("setting")["run here"]
    assert here["models"] == ", ".join(scale.llm.models.values())
    assert here["MeZO"].endswith(f"B = {scale.llm.mezo_batch}")
    here = fig2.settings_table(scale).set_index("setting")["here: as-plotted"]
    assert here["η of DeComFL, left / right"] == ("0.001 / 0.0005" if scale.name == "full" else "0.0003 / 0.00015")


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_run_of_language_models_has_the_tuning_of_its_task_and_begins_with_a_model_that_there_is(
    scale: Scale,
) -> None:
    size = scale.llm
    for job in jobs("llm", scale):
        row, task, series = (str(job.labels[name]) for name in ("row", "task", "series"))
        rounds, lr, batch = (size.first_order if series == "FedAvg" else size.settings)[row][task]
        assert (job.config.rounds, job.config.lr) == (rounds, lr)
        assert job.config.batch_size == (size.mezo_batch if series == "MeZO" else batch)
    for work in (*jobs("llm", scale), *jobs("sizes", scale)):
        model = work.config.model if isinstance(work, Job) else work.arguments["model"]
        own = scale.pretrained.get(model)
        assert [need.arguments["config"] for need in work.needs] == ([] if own is None else [own])
        assert (own is None) == (scale.name == "full") == model.startswith("facebook/opt-")
    assert all((model in scale.sizes.etas) == (scale.name == "full") for model in scale.sizes.models)


# --- the tables -------------------------------------------------------------------------------------------------------


def other(value: Any) -> Any:
    """Another value of a setting."""
    if isinstance(value, dict):
        return {name: other(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(other, value))
    return value.removesuffix("-projection") if isinstance(value, str) else 2 * value + 1


@pytest.mark.parametrize("part", ["fig2", "fig3", "projection"])
def test_no_setting_is_without_effect(part: str) -> None:
    scale = SCALES["full"]
    users = [user for user in CURVES if scale.of(user) is scale.of(part)]
    for name, value in vars(scale.of(part)).items():
        new = scale.but(**{part: scale.of(part).but(**{name: other(value)})})
        if name == "local_rounds":
            new = changed(scale, ["fig2.local_rounds={1=9}"])[0]
        assert any(jobs(user, new) != jobs(user, scale) for user in users), name


def test_a_row_with_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `urgncy`"):
        msgspec.convert({"urgncy": [1]}, Series)
