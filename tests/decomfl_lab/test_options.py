"""Every value that comes from outside is held to its schema at every door: Python, file, flag and peer."""

import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import tomli_w
import torch
from msgspec import inspect

import decomfl_lab as lab
from decomfl_lab.cli.command import OptionsCommand
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.methods.registry import METHODS
from decomfl_lab.options import REQUIRED, WORDS, Option, declared, require_option, struct_of
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, run_options
from decomfl_lab.runs.folder import CHECKPOINT_FILE, LOG_FILE, PROVENANCE_FILE
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.checkpoint_file import read_values
from decomfl_lab.storage.outside import FILES, Offer, read_as
from hessian import DenseOperator, effective_rank
from tests.cases import refused
from tests.decomfl_lab.cli.test_commands import EVERY
from tests.decomfl_lab.runs.variants import SMALL

LONG, HALF = "x" * 5000, "\ud800"


def bad(kind: inspect.Type) -> list[Any]:
    """Values that no field of this type may have: below, above, of a wrong type, NaN."""
    if isinstance(kind, inspect.Metadata):
        return bad(kind.type)
    if isinstance(kind, inspect.UnionType):
        wrong = [each for own in kind.types for each in bad(own)]
        return [each for each in wrong if each is not None or not kind.includes_none]
    if isinstance(kind, inspect.IntType):
        below = -(2**70) if kind.ge is None else kind.ge - 1
        return [below, 2**70 if kind.le is None else kind.le + 1, 1.5, "x", LONG, None, True, math.nan]
    if isinstance(kind, inspect.FloatType):
        least = [each for each in (kind.ge - 1 if kind.ge is not None else None, kind.gt) if each is not None]
        most = [each for each in (kind.le + 1 if kind.le is not None else None, kind.lt) if each is not None]
        return [*least, *most, *[math.nan] * bool(least + most), "x", LONG, None, True]
    if isinstance(kind, inspect.LiteralType):
        return ["neither", LONG, HALF, 7, None]
    if isinstance(kind, inspect.StrType):
        return [HALF, 7, None, *[LONG] * bool(kind.pattern or kind.max_length)]
    if isinstance(kind, inspect.DictType):
        return [7, None, "x", *({3: each} for each in bad(kind.value_type)), {0: 1}]
    wrong_kinds = {inspect.BoolType: [1, "yes", None], inspect.ListType: [7, None]}
    return wrong_kinds.get(type(kind), [])


def fields_of(struct: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """The types of a schema's fields."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return {each.name: each.type for each in info.fields}


def require_line(told: str, name: str, value: Any) -> None:
    """What is told is one line that names the place, the rule and, as far as a line can show it, the value."""
    assert told.isprintable(), told
    assert name.replace("_", "-") in told.replace("_", "-"), (name, told)
    assert " must " in told, told
    if isinstance(value, dict):  # a schedule is told of by the round, or the number, that is wrong
        ((r, each),) = value.items()
        value = each if r else r
    got = repr(value)[:20].strip("'\"")
    assert got.isprintable() is False or got in told or "ud800" in told, (value, told)


OPTIONS = {
    (name, repr(each)): (method, name, each)
    for method in reversed(METHODS)
    for name, each in {**METHODS[method].options(), **run_options()}.items()
}
"""Every option of a run once, with a method that has it."""
CASES = [
    (method, name, each, value)
    for method, name, each in OPTIONS.values()
    for value in bad(fields_of(struct_of("one", {name: each}))[name])
]


@pytest.mark.parametrize("method", METHODS)
def test_no_option_of_a_run_is_out_of_its_range_in_python_a_file_or_an_offer(method: str, tmp_path: Path) -> None:
    own = [(name, value) for of, name, _, value in CASES if of == method]
    own += [("seed", -1), ("seed", 2**64)]  # what 64 bits cannot say is told by words in the schema
    run, x0 = "0" * 32, "f" * 32
    for name, value in own:
        if value != HALF:  # Python's own texts are whole
            with pytest.raises(lab.InputError) as python:
                TrainConfig(method, **{name: value})
            require_line(str(python.value), name, value)
        values = TrainConfig(method).to_dict() | {name: as_json(value)}
        with pytest.raises(lab.InputError) as peer:
            config_from_mapping(read_as(Offer, {"run": run, "x0": x0, "config": values}, "offer").config, "the offer")
        require_line(str(peer.value), "text" if value == HALF else name, value)


def as_json(value: Any) -> Any:
    """The value as JSON and TOML have it."""
    return {str(r): each for r, each in value.items()} if isinstance(value, dict) else value


def written(value: Any) -> str | None:
    """The value as a flag has it; None where a flag cannot say it."""
    if isinstance(value, dict):
        ((r, each),) = value.items()
        return None if (text := written(each)) is None else f"{r}={text}"
    return None if value is None or value in (HALF, True) or isinstance(value, bool) else str(value)


@pytest.mark.parametrize("method", METHODS)
def test_no_option_of_a_run_is_out_of_its_range_in_a_flag_or_a_file_and_nothing_is_written(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "run.toml"
    own = [case[1:] for case in CASES if case[0] == method and case[3] is not None]
    first = {name: (option, value) for name, option, value in reversed(own)}  # all values are tried above
    for name, (option, value) in first.items():
        if option.kind is not bool and (text := written(value)) is not None and not (option.kind is str and value == 7):
            told = refused(capsys, "train", method, f"--{name.replace('_', '-')}={text}", "--out", str(out))
            assert name.replace("_", "-") in told.replace("_", "-"), told
        try:
            file.write_text(tomli_w.dumps({name: as_json(value), "method": method}), encoding="utf-8")
        except (TypeError, ValueError):  # TOML has no null, nor half a character
            continue
        require_line(refused(capsys, "train", "--config", str(file), "--out", str(out)).strip(), name, value)
    assert not out.exists()


COMMANDS = [(path, each) for path, each in EVERY if isinstance(each, OptionsCommand)]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_no_flag_of_a_command_is_out_of_its_range_and_nothing_is_begun(
    path: str, command: OptionsCommand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run", None)  # it would raise a TypeError if it were begun
    own = dict(declared(command.kind))
    given = {name: "1" for name, each in own.items() if each.default is REQUIRED}
    flags = {param.name: param for param in command.params}
    for name, option in own.items():
        kind = fields_of(struct_of("one", {name: option}))[name]
        kind = kind.item_type if isinstance(kind, inspect.ListType) else kind
        texts = {text for each in bad(kind) if (text := written(each)) is not None}
        for text in texts if option.kind in (int, float) or option.choices else ():
            words = []
            for each, said in (given | {name: text}).items():
                words.append(f"{flags[each].opts[-1]}={said}" if isinstance(flags[each], click.Option) else said)
            told = refused(capsys, *path.split()[1:], *words)
            assert name.replace("_", "-") in told.replace("_", "-") or flags[name].opts[0].lstrip("-") in told, told


def test_every_default_is_in_its_range_so_that_one_that_is_left_need_not_be_looked_at() -> None:
    of_commands = [(name, each) for _, command in COMMANDS for name, each in declared(command.kind)]
    given = [own for own in [case[1:] for case in OPTIONS.values()] + of_commands if own[1].default is not REQUIRED]
    assert len(given) > 200
    for name, each in given:
        each.require(name, each.default)


def test_an_unknown_option_is_refused_with_the_nearest_at_every_door(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run.toml").write_text("\ufeffbatchsize = 4\n")  # as an editor may begin a file
    for told in (
        refused(capsys, "train", "decomfl", "--batchsize", "4"),
        refused(capsys, "train", "--config", str(tmp_path / "run.toml")),
    ):
        assert "batch" in told.partition("did you mean")[2].lower() or "--batch-size" in told
    (tmp_path / "run.toml").write_text("learning_rate = 0.1\n")
    assert "(did you mean lr?)" in refused(capsys, "train", "--config", str(tmp_path / "run.toml"))
    with pytest.raises(lab.InputError, match="did you mean batch_size"):
        TrainConfig(batchsize=4)


# Files: what runs and estimates really write, with each of its fields spoilt in turn.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    Run(SMALL).train(out=folder)
    effective_rank(DenseOperator(torch.diag(torch.arange(1.0, 90.0))), seed=0, checkpoint=folder / "kappa", rtol=0.5)
    with RunLog.open(folder / LOG_FILE, write=False) as log:
        header = {name: value for name, value in log.header.items() if name != "run_seed"}
    return {
        "log": header,
        "checkpoint": read_values(folder / CHECKPOINT_FILE)[1],
        "provenance": json.loads((folder / PROVENANCE_FILE).read_text()),
        "offer": {"run": "0" * 32, "x0": "f" * 32, "config": SMALL.to_dict()},
        "host": {"run": "0" * 32, "round": 3, "steps": {"0": 4}, "answers": {"0": [3, "00ff"]}},
        "kappa-checkpoint": read_values(folder / "kappa")[1],
    }


def spoilt(kind: inspect.Type, value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The path of each field of a value of this type, with values that it may not have."""
    kind = kind.type if isinstance(kind, inspect.Metadata) else kind
    if isinstance(kind, inspect.UnionType):
        structs = [own for own in kind.types if isinstance(own, inspect.StructType)]
        if len(structs) != 1 or value is None:
            return
        kind = structs[0]
    for each in bad(kind):
        yield path, each
    if isinstance(kind, inspect.StructType | inspect.DataclassType):
        yield path, 7
        for field in kind.fields:
            if field.encode_name in value:
                yield from spoilt(field.type, value[field.encode_name], (*path, field.encode_name))
                if field.required:
                    yield (*path, field.encode_name), REQUIRED
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType) and value:
        yield from spoilt(kind.item_type, value[0], (*path, 0))
    elif isinstance(kind, inspect.TupleType):
        for n, own in enumerate(kind.item_types):
            yield from spoilt(own, value[n], (*path, n))
    elif isinstance(kind, inspect.DictType) and value and not isinstance(kind.value_type, inspect.AnyType):
        key = next(iter(value))
        yield from spoilt(kind.value_type, value[key], (*path, key))


@pytest.mark.parametrize("name", FILES)
def test_no_field_of_a_file_is_out_of_its_range(name: str, files: dict[str, dict[str, Any]]) -> None:
    kind, right = FILES[name], json.loads(json.dumps(files[name]))
    read_as(kind, right, name)
    read_as(kind, {**right, "of a later version": 1}, name)
    info, tried = inspect.type_info(kind), set()
    for path, value in spoilt(info, right):
        own = copy.deepcopy(right)
        *outer, last = path or ("",)
        place = own
        for step in outer:
            place = place[step]
        if not path:
            own = value
        elif value is REQUIRED:
            del place[last]
        else:
            place[last] = value
        with pytest.raises(lab.InputError) as found:
            read_as(kind, own, f"the {name}")
        told = str(found.value)
        assert told.isprintable(), told
        assert f"the {name}" in told, told
        assert " must " in told, told
        assert value == HALF or not path or isinstance(last, int) or str(last) in told, (path, value, told)
        tried.add(path)
    assert {path[0] for path in tried if path} >= {field.name for field in info.fields if field.required}


# The schema that is told is the one that is held to.


def test_a_schema_is_told_for_every_file_method_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    names = [name for line in capsys.readouterr().out.splitlines() for name in line.partition(": ")[2].split(", ")]
    assert {*FILES, *METHODS, "kappa", "check", "certificates"} <= {*names}
    told = {}
    for name in names:
        assert main(["schema", name]) == 0
        told[name] = json.loads(capsys.readouterr().out)["$defs"]
        assert told[name]
    properties = told["decomfl"]["decomfl"]["properties"]
    assert properties["batch_size"]["minimum"] == 1
    assert properties["momentum"]["exclusiveMaximum"] == 1
    assert properties["estimator"]["enum"] == ["central", "forward"]
    rates = properties["lr_schedule"]["anyOf"]
    assert [each["additionalProperties"]["exclusiveMinimum"] for each in rates if each["type"] == "object"] == [0]
    for name, value in (("attack", "sign"), ("attack", "own f"), ("aggregation", "a.py:f")):
        assert re.search(properties[name]["pattern"], value)
        assert not re.search(properties[name]["pattern"], "neither")
    assert "batch_size" in TrainConfig().to_dict().keys() <= properties.keys()


@pytest.mark.parametrize(("change", "value"), [({"ge": None}, 0), ({"choices": ()}, "neither")])
def test_the_property_notices_an_option_that_lost_its_range(change: dict[str, Any], value: Any) -> None:
    assert len(CASES) > 400
    whole = Option(4, "", ge=1) if "ge" in change else Option("a", "", choices=("a", "b"))
    assert value in bad(fields_of(struct_of("one", {"it": whole}))["it"])
    with pytest.raises(lab.InputError):
        whole.require("it", value)
    replace(whole, **change).require("it", value)


# Words of the paper and of other libraries ----------------------------------------------------------------------------


KNOWN = [*run_options(), *(name for method in METHODS.values() for name in method.options()), "device", "out"]


@pytest.mark.parametrize("word", WORDS)
def test_every_word_names_an_option_that_exists_and_is_none_itself(word: str) -> None:
    meant = WORDS[word].replace("-", "_")
    assert meant in KNOWN
    assert word not in [name.replace("_", "-") for name in run_options()]
    with pytest.raises(InputError, match=rf"got {re.escape(repr(word))} \(did you mean {meant}\?\)$"):
        require_option("option of decomfl", word, ["another", meant])


def test_a_word_passes_where_it_is_an_option_and_is_answered_by_those_that_there_are_where_none_is_meant() -> None:
    for name in ("K", "eps", "lr"):
        require_option("option of mine", name, ["K", "eps", "lr"])
    with pytest.raises(InputError, match=r"option of mine must be one of rounds, seed, got 'beta1'$"):
        require_option("option of mine", "beta1", ["rounds", "seed"])
    with pytest.raises(InputError, match=r"got 'roundz' \(did you mean rounds\?\)"):
        require_option("option of mine", "roundz", ["rounds", "seed"])
