"""What a log may say, for the readers in C and JavaScript: tables from the declarations by which decomfl reads one.

python -m docs.reader_rules

It writes examples/c/rules.h, and the block between the two marks in docs/_static/rebuild/decomfl.js.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import inspect

from decomfl_lab.files import write_atomically
from decomfl_lab.noise import STREAM_VERSION, Distribution
from decomfl_lab.noise.spec import LOW_RANK_CODE, NO_LOW_RANK
from decomfl_lab.noise.starts import CUT, DRAWS
from decomfl_lab.outside import Drawn, Header, StreamStart
from decomfl_lab.protocol.messages import ROUND_HEAD
from decomfl_lab.protocol.wire import MAX_SCALARS

ROOT = Path(__file__).parent.parent
C, JAVASCRIPT = ROOT / "examples" / "c" / "rules.h", ROOT / "docs" / "_static" / "rebuild" / "decomfl.js"
FIRST, LAST = "  // Rules: python -m docs.reader_rules writes them.\n", "  // End of the rules.\n"
_LARGEST = 2**64 - 1
_BITS = 63
"""Those of a whole number that may stand for a real one in a configuration."""
_SHARE = math.nextafter(1, 0)  # the last number before 1
_FINITE = float(np.finfo(np.float64).max)
_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rule:
    """What the value of a key must be."""

    key: str
    kind: str  # text, hex, name, truth, table, list, whole, wholes (a list of them), real
    optional: bool = False
    least: float = 0  # of a number; of a list, of its numbers
    most: float = 0  # likewise; of hex, its digits
    longest: int = 0  # of a list; of a real number that stands there as a whole one, its bits, 0 for any
    names: str = ""  # all that it may be, with a space after each
    words: str = ""  # what it must be, in words


def _one_of(key: str, names: Iterable[str], *, optional: bool = False, hint: str = "") -> Rule:
    every = list(names)
    words = f"be one of {', '.join(every)}{hint}"
    return Rule(key, "name", optional, names="".join(f"{name} " for name in every), words=words)


def _rule(key: str, kind: inspect.Type, optional: bool) -> Rule:
    """The rule of a field of a type of ``outside``."""
    match kind:
        case inspect.IntType(ge=least, le=most):
            least, most = 0 if least is None else least, _LARGEST if most is None else most
            return Rule(key, "whole", optional, least, most, words=f"be a whole number in {least}..{most}")
        case inspect.StrType(pattern=str() as pattern):
            digits = int(re.findall(r"{(\d+)}", pattern)[0])
            return Rule(key, "hex", optional, most=digits, words=f"be text of {digits} hexadecimal digits")
        case inspect.StrType():
            return Rule(key, "text", optional, words="be text")
        case inspect.FloatType():
            return Rule(key, "real", optional, -_FLOAT32, _FLOAT32, words="be a float32 number")
        case inspect.LiteralType(values=names):
            return _one_of(key, map(str, names), optional=optional)
        case inspect.VarTupleType(item_type=inspect.IntType(ge=least, le=most), max_length=longest):
            words = f"be a list of at most {longest} whole numbers in {least}..{most}"
            return Rule(key, "wholes", optional, least or 0, most or 0, longest or 0, words=words)
        case inspect.VarTupleType(max_length=longest):
            return Rule(key, "list", optional, longest=longest or 0, words=f"be a list of at most {longest}")
    return Rule(key, "table", optional, words="be a table")


def _rules(kind: type[Any]) -> list[Rule]:
    found: Any = inspect.type_info(kind)
    return [_rule(own.encode_name, own.type, not own.required) for own in found.fields]


def rules() -> dict[str, list[Rule]]:
    """The rules of a header, of its start if that is drawn, of a tensor of it, and of the options that are followed."""
    header = [Rule("run_seed", "whole", False, 0, _LARGEST, words=f"be an integer in 0..{_LARGEST}"), *_rules(Header)]
    stream = Rule("stream", "whole", False, STREAM_VERSION, STREAM_VERSION, words=f"be {STREAM_VERSION}")
    cut = Rule("cut", "real", True, *CUT, words="be in {}..{}".format(*CUT))
    tensor = {own.key: own for own in _rules(Drawn)} | {"draw": _one_of("draw", DRAWS), "cut": cut}
    config = [
        Rule("rank", "whole", True, 1, 1, words=f"be 1, {NO_LOW_RANK}"),
        _one_of("distribution", Distribution, optional=True, hint=f", {NO_LOW_RANK}"),
        Rule("clients", "whole", True, 1, 2**63 - 1, words="be an integer of at least 1"),
        Rule("rounds", "whole", True, 1, 2**63 - 1, words="be an integer of at least 1"),
        Rule("seed", "whole", True, 0, _LARGEST, words=f"be an integer in 0..{_LARGEST}"),
        Rule("momentum", "real", True, 0, _SHARE, _BITS, words="be in [0, 1)"),
        Rule("weight_decay", "real", True, 0, _FINITE, _BITS, words="be finite and at least 0"),
        Rule("beta2", "real", True, 0, _SHARE, _BITS, words="be in [0, 1)"),
        Rule("epsilon", "real", True, math.ulp(0), _FINITE, _BITS, words="be a finite number above 0"),
        _one_of("momentum_form", ("torch", "paper"), optional=True),
        Rule("private_seeds", "truth", True, words="be of type bool"),
        Rule("method", "text", True, words="be text"),
        _one_of("rule", ("sgd", "sign", "adamm"), optional=True),
        _one_of("precision", ("float32", "bfloat16", "float16"), optional=True),
    ]
    return {
        "header": [stream if own.key == "stream" else own for own in header],
        "start": _rules(StreamStart),
        "tensor": list(tensor.values()),
        "config": config,
    }


def record_rules() -> dict[str, tuple[int, int, str]]:
    """Least, most and rule of the whole numbers that a record begins with; eta is a finite number above 0."""
    found = {}
    for own in ROUND_HEAD.fields:
        if own.name != "round" and own.form not in "fd":
            every = own.whole_numbers
            found[own.name.partition(" ")[0]] = every[0], every[-1], own.rule()
    return found


_HEAD = """/* What a log may say: python -m docs.reader_rules writes it from what decomfl itself reads logs by. */
#ifndef DECOMFL_RULES_H
#define DECOMFL_RULES_H

#include <stdint.h>

#define NO_LOW_RANK "{NO_LOW_RANK}"
enum {{ LOW_RANK = {LOW_RANK_CODE}, MOST_SCALARS = {MAX_SCALARS} }};
typedef enum {{ TEXT, HEX, NAME, TRUTH, TABLE, LIST, WHOLE, WHOLES, REAL }} kind_of_value;
typedef struct {{
    const char *key;
    kind_of_value kind;
    int optional;
    uint64_t least, most; /* of whole numbers; most is the digits of hex, too */
    uint64_t longest;     /* of a list; of a real number that stands there as a whole one, its bits, 0 for any */
    double from, to;      /* of a real number */
    const char *names, *words; /* what it may be, with a space after each; what it must be, in words */
}} rule_of_value;
typedef struct {{ uint32_t least, most; const char *words; }} rule_of_record;

"""


def in_c() -> str:
    """The header of C."""
    whole = _HEAD.format(NO_LOW_RANK=NO_LOW_RANK, LOW_RANK_CODE=LOW_RANK_CODE, MAX_SCALARS=MAX_SCALARS)
    for name, table in rules().items():
        whole += f"static const rule_of_value {name.upper()}_RULES[] = {{\n"
        for own in table:
            bounds = f"0, 0, {own.longest}, {own.least!r}, {own.most!r}"
            if own.kind != "real":
                bounds = f"{own.least}u, {own.most}u, {own.longest}, 0, 0"
            texts = f"{json.dumps(own.names)}, {json.dumps(own.words)}"
            whole += f'    {{"{own.key}", {own.kind.upper()}, {int(own.optional)}, {bounds}, {texts}}},\n'
        whole += "    {0}};\n\n"
    for name, (least, most, words) in record_rules().items():
        whole += f'static const rule_of_record {name.upper()}_RULE = {{{least}, {most}, "{words}"}};\n'
    return whole + "\n#endif\n"


def in_javascript() -> str:
    """The block of JavaScript."""
    said = f"NO_LOW_RANK = {json.dumps(NO_LOW_RANK)}, LOW_RANK = {LOW_RANK_CODE}, MOST_SCALARS = {MAX_SCALARS}"
    whole = f"""  const {said};
  // Key, kind, whether it may be left out, least and most of numbers, the longest list, names, words.
  // Of a real number the longest is the bits that it may have where it stands as a whole one, 0 for any.
  const LOG_RULES = {{
"""
    for name, table in rules().items():
        whole += f"    {name}: [\n"
        for own in table:
            n = "n" if own.kind in ("whole", "wholes") else ""  # BigInt, as a double cannot hold all of them
            bounds = f"{own.least}{n}, {own.most}{n}, {own.longest}"
            texts = f"{json.dumps(own.names)}, {json.dumps(own.words)}"
            whole += f'      ["{own.key}", "{own.kind}", {json.dumps(own.optional)}, {bounds}, {texts}],\n'
        whole += "    ],\n"
    whole += "  };\n  // Least, most and rule of what a record begins with.\n  const RECORD = {\n"
    for name, row in record_rules().items():
        whole += f"    {name}: {json.dumps(row)},\n"
    return whole + "  };\n"


def written(text: str) -> str:
    """The text of decomfl.js with the block as it is to be."""
    before, _, rest = text.partition(FIRST)
    _, _, after = rest.partition(LAST)
    return before + FIRST + in_javascript() + LAST + after


if __name__ == "__main__":
    write_atomically(C, in_c())
    write_atomically(JAVASCRIPT, written(JAVASCRIPT.read_text(encoding="utf-8")))
