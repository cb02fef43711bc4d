"""How large a reproduction is, read from ``scales.toml``. Only ``full`` has the paper's own numbers."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Self

from decomfl_lab.errors import require, require_choice
from decomfl_lab.language.pretraining import PretrainConfig
from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow.series import from_toml
from paper_repro.workflow.verdicts.claim_table import PARTS, SCALE_NAMES
from theory.notation.printed import EXAMPLES

_DATA: Final[dict[str, Any]] = from_toml(table_beside(__name__, "scales.toml"))
_WORDS: Final[Mapping[str, str]] = _DATA["words"]
_PIECES: Final[Mapping[str, Mapping[str, Any]]] = _DATA["pieces"]
_OF: Final[Mapping[str, str]] = {"table1": "fig2", "topk": "fig3"}
"""Parts that are made at the sizes of another."""


class _Told(dict[str, Any]):
    """What the texts on sizes need by name: the values, and the pieces that are made of them."""

    def __missing__(self, name: str) -> str:
        piece = _PIECES[name]
        if "each" in piece:
            entries = self[piece["each"]].items()
            return str(piece.get("joined", ", ")).join(piece["text"].format(key=k, value=v) for k, v in entries)
        # A value that is a name stands for what that setting has.
        unless = piece.get("unless", {}).items()
        usual = unless and all(self[setting] == self.get(value, value) for setting, value in unless)
        return "" if usual else str(piece["text"].format_map(self))


class Sizes(SimpleNamespace):
    """The sizes of a part at one scale: the settings of its table in ``scales.toml``, by name."""

    def but(self, **changes: Any) -> Self:
        """The same with other values."""
        return type(self)(**{**vars(self), **changes})

    def told(self, **more: Any) -> dict[str, Any]:
        """The settings, and more, as texts take them: tuples with commas and how many there are, and the pieces."""
        texts = _Told({**vars(self), **more})
        for name, value in list(texts.items()):
            if isinstance(value, tuple):
                texts |= {name: ", ".join(map(str, value)), f"number_of_{name}": len(value)}
        return texts


class TaskTuning(NamedTuple):
    """Rounds R, learning rate η and batch size B of fine-tuning a model to a task."""

    rounds: int
    lr: float
    batch_size: int


TASK_ROWS: dict[str, str] = dict(zip(("sst2", "cb", "wsc", "wic", "rte", "boolq"), EXAMPLES, strict=True))
TASK_ROWS["cb-two-way"] = "CB"
"""The row of each task in the paper's tables."""


# --- all of them ------------------------------------------------------------------------------------------------------


class Scale(Sizes):
    """The sizes of every part that has a table in ``scales.toml``, by its name."""

    name: str  # smoke, default or full
    # the small OPT models that fine-tuning begins with, by size. Other models are the hub's.
    pretrained: Mapping[str, PretrainConfig]

    def of(self, part: str) -> Sizes:
        """The sizes at which a part is made."""
        sizes: Sizes = getattr(self, _OF.get(part, part))
        return sizes

    def words(self, part: str = "", *, named: bool = True, **more: Any) -> str:
        """The scale in a line, for captions and claims: its name, what it is, and the sizes of a part, "" for none.

        The paper has sizes for a part that is ``named``; its text may need ``more`` than the scale has.
        """
        kind = "reduced, not the paper's"
        if self.name == "full":
            kind = "the paper's own sizes" if named else "the paper names no sizes"
        words = f"{self.name} ({kind})"
        return f"{words}: {_WORDS[part].format_map(self.of(part).told(**more))}" if part else words


_SIZED: Final = [part for part in _DATA if part in PARTS]


def _raw(part: str, scale: str) -> dict[str, Any]:
    """The sizes of a part as the files have them."""
    settings = {**_DATA[part], **_DATA[part].get(scale, {})}
    # The seeds stand beside the claims, where ``--list`` finds them.
    settings |= {"seeds": PARTS[part].seeds[scale]} if "seeds" in settings else {}
    return {name: value for name, value in settings.items() if name not in SCALE_NAMES}


def _sizes(part: str, raw: Mapping[str, Any]) -> Sizes:
    """The sizes that these values are; InputError for what no runs can have."""
    size = Sizes(**raw)
    if part == "fig2":
        require_choice("written_method", size.written_method, ("decomfl", "decomfl-projection"))
        require_choice("fedzo_method", size.fedzo_method, ("fedzo", "fedzo-projection"))
    elif part == "memory":
        require(min(size.d, default=0) >= 1000, "d", "be 1000 at least", size.d)
    elif part == "hessian":
        ascending = list(size.steps) == sorted(set(size.steps)) and size.steps[-1:] > (0,)
        require(ascending, "steps", "ascend to a number above 0", size.steps)
    elif part == "llm":
        for row, tasks in size.settings.items():
            require_choice("model of settings", row.removesuffix("+LoRA"), size.models)
            for task in tasks:
                require_choice("task of settings", task, TASK_ROWS)
        for name in ("settings", "first_order"):
            tunings = {}
            for row, by_task in getattr(size, name).items():
                tunings[row] = {task: TaskTuning(*tuning) for task, tuning in by_task.items()}
            size = size.but(**{name: tunings})
    return size


SCALES: Final[Mapping[str, Scale]] = {
    name: Scale(
        name=name,
        pretrained={size: PretrainConfig(size=size, **own) for size, own in _DATA["pretrained"].get(name, {}).items()},
        **{part: _sizes(part, _raw(part, name)) for part in _SIZED},
    )
    for name in SCALE_NAMES
}
"""Every scale by its name, from small to large."""


# --- settings that are changed ----------------------------------------------------------------------------------------


def changed(scale: Scale, assignments: Sequence[str]) -> tuple[Scale, dict[str, str]]:
    """The scale with other values.

    Args:
        scale: The scale, as the files have it.
        assignments: PART.SETTING=VALUE each, VALUE written as in ``scales.toml`` (text also without quotes).

    Returns:
        The changed scale, and {part: what was changed} of all parts that are made at changed sizes.

    Raises:
        InputError: If there is no such setting, which then lists those that there are, or no such value.
    """
    given: dict[str, dict[str, Any]] = {}
    for text in assignments:
        name, _, written = text.partition("=")
        part, _, setting = map(str.strip, name.partition("."))
        require(bool(setting) and bool(written.strip()), "--set", "be PART.SETTING=VALUE, as fig2.M=50", text)
        # What is no TOML is text without quotes, as mlp.
        try:
            parsed = tomllib.loads(f"value = {written}")
        except tomllib.TOMLDecodeError:
            parsed = {"value": written.strip()}
        require(set(parsed) == {"value"}, "--set", "be one line", text)
        require_choice("--set part", part, _SIZED)
        raw = given.setdefault(part, _raw(part, scale.name))
        require_choice(f"--set {part} setting", setting, raw)
        raw[setting] = from_toml(parsed["value"])
    new: dict[str, Any] = {}
    changes_in_words: dict[str, str] = {}
    for part, raw in given.items():
        before, words = _raw(part, scale.name), []
        for name, value in raw.items():
            _require_like(value, [_raw(part, each)[name] for each in SCALE_NAMES], f"--set {part}.{name}")
            if value != before[name]:
                words.append(f"{part}.{name} = {_shown(value)} instead of {_shown(before[name])}")
        new[part] = _sizes(part, raw)
        changes_in_words |= {user: ", ".join(words) for user in (part, *_OF) if words and _OF.get(user, user) == part}
    return scale.but(**new), changes_in_words


def _require_like(value: Any, known: Sequence[Any], name: str) -> None:
    """Raise InputError unless the value is of the kind that the known ones are.

    In a table or list whose values are all of one kind, those of another one are of it too, however many they are; else
    names, or places, have a kind each: {loss = 0.1, rounds = 60} or [300, 0.003, 32].
    """
    kind = next((type(each) for each in known), type(value))
    got = [*value] if isinstance(value, tuple) else value  # as it was written
    rule = {dict: "be a table, as {10 = 20}", tuple: "be a list, as [1, 2]", int: "be a whole number", str: "be text"}
    if kind is float:
        require(type(value) in (int, float) and math.isfinite(value), name, "be a finite number", got)
    else:
        # Not isinstance: True is an int.
        require(type(value) is kind, name, rule.get(kind, ""), got)
    # 0 means something in a few settings alone, as "all images": those in which some scale has it.
    something = value in known or (value > 0 if kind in (int, float) else bool(value))
    require(something, name, "have numbers above 0, and something in it", got)
    if kind in (dict, tuple):
        # A list is a table whose names are places.
        entries, *known_entries = ({**each} if kind is dict else dict(enumerate(each)) for each in (value, *known))
        by_key: dict[Any, list[Any]] = {}  # what the known ones have at each name or place
        for key, entry in chain.from_iterable(each.items() for each in known_entries):
            by_key.setdefault(key, []).append(entry)
        all_known = [*chain.from_iterable(by_key.values())]
        if kind is dict and all(type(key) is int for key in by_key):
            require(all(type(key) is int for key in entries), name, "have whole numbers for names", got)
        one_kind = len({type(entry) for entry in all_known}) < 2
        fits = entries.keys() <= by_key.keys() if kind is dict else entries.keys() == by_key.keys()
        names = ", ".join(map(str, by_key)) if kind is dict else f"{len(by_key)} values"
        require(one_kind or fits, name, f"have {names}", got)
        for key, entry in entries.items():
            _require_like(entry, all_known if one_kind else by_key[key], f"{name}.{key}" if kind is dict else name)


def _shown(value: Any) -> str:
    """A value as it is written."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_shown(each)}" for name, each in value.items()) + "}"
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, tuple) else str(value)
