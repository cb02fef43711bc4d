"""What a log may say, for the readers in C and JavaScript: tables from the declarations by which decomfl reads one.

python -m docs.reader_rules

It writes the block between the two marks in examples/c/rules.h and in docs/_static/rebuild/decomfl.js.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import inspect

from decomfl_lab.errors import InputError
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.noise.spec import LOW_RANK_CODE, NO_LOW_RANK
from decomfl_lab.noise.starts import CUT, DRAWS
from decomfl_lab.protocol.messages import ROUND_HEAD
from decomfl_lab.protocol.wire import MAX_SCALARS
from decomfl_lab.runs.configuration import run_options
from decomfl_lab.storage.files import write_atomically
from decomfl_lab.storage.outside import Drawn, Header, StreamStart

ROOT = Path(__file__).parent.parent
C, JAVASCRIPT = ROOT / "examples" / "c" / "rules.h", ROOT / "docs" / "_static" / "rebuild" / "decomfl.js"
FIRST, LAST = "// Rules: python -m docs.reader_rules writes them.\n", "// End of the rules.\n"
_FORMS = {
    C: (
        "#define NO_LOW_RANK {why}\nenum {{ LOW_RANK = {code}, MOST_SCALARS = {most} }};\n\n",
        *("static const rule {NAME}_RULES[] = {{\n", "    {{{}}},\n", "    {{0}}}};\n\n", ""),
    ),
    JAVASCRIPT: (
        "  const NO_LOW_RANK = {why}, LOW_RANK = {code}, MOST_SCALARS = {most};\n  const LOG_RULES = {{\n",
        *("    {name}: [\n", "      [{}],\n", "    ],\n", "  }};\n  "),
    ),
}
"""How each language writes the beginning, the first line of a table, a row, the last line and the end."""
_LARGEST = 2**64 - 1
_BITS = 63
"""Those of a whole number that may stand for a real one in a configuration."""
_LONG = 2**63 - 1
_FOLLOWED = (
    "clients", "rounds", "seed", "momentum", "weight_decay", "beta2", "epsilon", "momentum_form",
    "private_seeds", "rule", "precision",
)  # fmt: skip
"""The options that readers go by. Others may get values that nobody knows yet, and a log can be followed."""
_FINITE = float(np.finfo(np.float64).max)
_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rule:
    """What the value of a key must be."""

    key: str
    kind: str  # text, hex, name, truth, table, list, whole, wholes (a list of them), real
    optional: int = 0  # whether it may be left out: 0 no, 1 yes, 2 it may be null, too
    least: float = 0  # of a number; of a list, of its numbers
    most: float = 0  # likewise; of hex, its digits
    longest: int = 0  # of a list; of a real number that stands there as a whole one, its bits, 0 for any
    names: str = ""  # all that it may be, with a space after each
    words: str = ""  # what it must be, in words


def _one_of(key: str, names: Iterable[str], *, optional: int = 0) -> Rule:
    every = list(names)
    listed = "".join(f"{name} " for name in every)
    return Rule(key, "name", optional, names=listed, words=f"be one of {', '.join(every)}")


def _rules(kind: type[Any]) -> list[Rule]:
    """The rules of the fields of a type of ``outside``."""
    about: Any = inspect.type_info(kind)
    found = []
    for own in about.fields:
        key, optional = own.encode_name, int(not own.required)
        match own.type:
            case inspect.IntType(ge=least, le=most):
                least, most = 0 if least is None else least, _LARGEST if most is None else most
                rule = Rule(key, "whole", optional, least, most, words=f"be a whole number in {least}..{most}")
            case inspect.StrType(pattern=str() as pattern):
                digits = int(re.findall(r"{(\d+)}", pattern)[0])
                rule = Rule(key, "hex", optional, most=digits, words=f"be text of {digits} hexadecimal digits")
            case inspect.StrType():
                rule = Rule(key, "text", optional, words="be text")
            case inspect.FloatType():
                rule = Rule(key, "real", optional, -_FLOAT32, _FLOAT32, words="be a float32 number")
            case inspect.LiteralType(values=names):
                rule = _one_of(key, map(str, names), optional=optional)
            case inspect.VarTupleType(item_type=inspect.IntType(ge=least, le=most), max_length=longest):
                words = f"be a list of at most {longest} whole numbers in {least}..{most}"
                rule = Rule(key, "wholes", optional, least or 0, most or 0, longest or 0, words=words)
            case inspect.VarTupleType(max_length=longest):
                rule = Rule(key, "list", optional, longest=longest or 0, words=f"be a list of at most {longest}")
            case _:
                rule = Rule(key, "table", optional, words="be a table")
        found.append(rule)
    return found


def rules() -> dict[str, list[Rule]]:
    """The rules of a header, a start that is drawn, a tensor of it, the options that are followed, and a record."""
    header = [Rule("run_seed", "whole", 0, 0, _LARGEST, words=f"be an integer in 0..{_LARGEST}"), *_rules(Header)]
    stream = Rule("stream", "whole", 0, STREAM_VERSION, STREAM_VERSION, words=f"be {STREAM_VERSION}")
    cut = Rule("cut", "real", 2, *CUT, words="be in {}..{}".format(*CUT))
    tensor = {own.key: own for own in _rules(Drawn)} | {"draw": _one_of("draw", DRAWS), "cut": cut}
    options = run_options() | DeComFL.options()
    kinds = _one_of("distribution", Distribution, optional=1)
    config = [
        Rule("rank", "whole", 1, 1, 1, words=f"be 1, {NO_LOW_RANK}"),
        replace(kinds, words=f"{kinds.words}, {NO_LOW_RANK}"),
        Rule("method", "text", 1, words="be text"),
    ]
    # Each option in the words in which it refuses what is none of its values.
    for key, option in ((key, options[key]) for key in _FOLLOWED):
        try:
            option.require(key, math.nan)
        except InputError as error:
            words = str(error).partition(" must ")[2].partition(", got")[0]
        if option.choices:
            config.append(_one_of(key, map(str, option.choices), optional=1))
        elif option.kind is bool:
            config.append(Rule(key, "truth", 1, words=words))
        elif option.kind is int:
            config.append(Rule(key, "whole", 1, option.ge or 0, option.le or _LONG, words=words))
        else:
            least = math.nextafter(option.gt, math.inf) if option.gt is not None else option.ge or 0
            most = math.nextafter(option.lt, -math.inf) if option.lt is not None else option.le or _FINITE
            config.append(Rule(key, "real", 1, least, most, _BITS, words=words))
    record = []
    for own in ROUND_HEAD.fields:
        if own.form not in "fd":
            every = own.whole_numbers
            record.append(Rule(own.name, "whole", 0, every[0], every[-1], words=own.rule()))
    return {
        "header": [stream if own.key == "stream" else own for own in header],
        "start": _rules(StreamStart),
        "tensor": list(tensor.values()),
        "config": config,
        "record": record,
    }


def written(path: Path, text: str) -> str:
    """The text of a reader's file with the block between its two marks as it is to be.

    Every row is the same text in both languages, bounds in quotes as neither can hold all of them.
    """
    begin, first, row, last, end = _FORMS[path]
    block = begin.format(why=json.dumps(NO_LOW_RANK), code=LOW_RANK_CODE, most=MAX_SCALARS)
    for name, table in rules().items():
        block += first.format(name=name, NAME=name.upper())
        for own in table:
            values = replace(own, least=repr(own.least), most=repr(own.most))  # type: ignore[arg-type]
            block += row.format(json.dumps(astuple(values))[1:-1])
        block += last.format()
    before, _, rest = text.partition(FIRST)
    return before + FIRST + block + end.format() + LAST + rest.partition(LAST)[2]


if __name__ == "__main__":
    for _path in _FORMS:
        write_atomically(_path, written(_path, _path.read_text(encoding="utf-8")))
