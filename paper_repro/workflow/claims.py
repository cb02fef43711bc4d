"""What the paper claims and how it is judged, as data that can be listed without a run: ``claims.toml``, read here.

A part judges its claims by id: an ``ClaimOutcome`` of an id that is not registered cannot be made.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, get_args

from decomfl_lab.errors import InputError, require, require_choice
from paper_repro.workflow import manifest

__all__ = [
    "CLAIMS",
    "DEAR",
    "ON_GPU",
    "PARTS",
    "RECORDED",
    "SCALE_NAMES",
    "UNHEALTHY",
    "UNTESTED",
    "VERDICTS",
    "WORDS",
    "Claim",
    "ClaimOutcome",
    "PartFacts",
    "Verdict",
    "claim",
    "decided",
    "judged",
    "limits",
    "named",
    "outcomes_json",
    "require_distinct_ids",
    "rows",
]

Verdict = Literal[
    "holds",
    "does not hold",
    "depends on how it is counted",
    "not tested at this scale",
    "not decided: our baseline did not train",
]
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)
UNTESTED: Final = "not tested at this scale"
UNHEALTHY: Final = "not decided: our baseline did not train"
"""A run that the claim rests on is ill, see ``workflow.health``."""
SCALE_NAMES: Final = ("smoke", "default", "full")
"""From small to large."""
RECORDED: Final = Path(__file__).parents[1] / "results" / "claims.json"
"""The outcomes of the recorded runs: ``decomfl paper --from-recorded --record paper_repro/results`` writes them."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A registered claim; ``claims.toml`` says what the fields are.

    Attributes:
        id: The part, a dot, and its name there; a name that ends in ``*`` stands for a claim about each of several.
        rule: The rule with the thresholds of ``claims.toml`` in it.
        scale: The least scale that can decide it; ``decided`` holds every outcome to it.
    """

    id: str
    words: str = ""
    question: str = ""
    where: str
    also: tuple[str, ...] = ()
    measures: str = ""
    rule: str = ""
    scale: str = ""
    needs: str = ""
    unmeasured: str = ""

    def __post_init__(self) -> None:
        """Check that it is asked once, and either judged or not for a reason."""
        asked = bool(self.words) != bool(self.question)
        require(asked, f"words and question of claim {self.id}", "be one of the two", (self.words, self.question))
        told = bool(self.unmeasured) != bool(self.measures and self.rule and self.scale in SCALE_NAMES)
        require(told, f"claim {self.id}", "say what it measures, its rule and its scale, or why nothing does", self)

    @property
    def part(self) -> str:
        """The part that judges it."""
        return self.id.partition(".")[0]

    @property
    def says(self) -> str:
        """The paper's words in quotation marks, or the question."""
        return f"“{self.words}”" if self.words else self.question


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """A part of the report, before it is made.

    Attributes:
        title: The heading of its section.
        picture: The stem of the file in OUT/figures that shows it; "" for a table.
        seeds: The seeds of its runs at each scale.
    """

    title: str
    picture: str = ""
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


# The file has a table a part; beside them "words", "limits" (which all parts share) and "paper" (claims of no part).
_DATA: Final[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
WORDS: Final[Mapping[str, str]] = _DATA.pop("words")
"""What the words of scales, readings and countings mean."""
_LIMITS: Final = {name: SimpleNamespace(**part.get("limits", {})) for name, part in _DATA.items() if name != "limits"}


def limits(part: str = "") -> SimpleNamespace:
    """The thresholds of a part, or those that all share, by name."""
    return _LIMITS[part] if part else SimpleNamespace(**_DATA["limits"])


def _claims(part: str) -> list[Claim]:
    """The claims of a part; those with ``like`` take from another what they do not name, but not its ``also``."""
    own = _DATA[part].get("claims", {})
    common = {"scale": _DATA[part].get("scale", "")} if part != "paper" else {}
    # A rule may name a threshold of its own part, of all parts, or as {part.name} of another part.
    thresholds = {**_DATA["limits"], **vars(_LIMITS[part]), **_LIMITS}
    found = []
    for name, row in own.items():
        # "saving" is a claim of this part, "fig2.saving" one of another.
        like = row.get("like", "")
        base = _DATA[like.partition(".")[0]]["claims"][like.partition(".")[2]] if "." in like else own.get(like, {})
        merged = {**common, **{key: value for key, value in base.items() if key != "also"}, **row}
        merged.pop("like", None)
        known = {each.name for each in fields(Claim)}
        require(set(merged) < known, f"fields of claim {part}.{name}", f"be among {', '.join(sorted(known))}", merged)
        rule = str(merged.pop("rule", "")).format(**thresholds)
        also = tuple(merged.pop("also", ()))
        measures = str(merged.pop("measures", "")).format(**thresholds)
        found.append(Claim(id=f"{part}.{name}", rule=rule, also=also, measures=measures, **merged))
    return found


ON_GPU: Final = ("fig2", "fig3", "smollm2", "hessian")
"""Parts with runs that a GPU shortens, in the order of their worth."""


DEAR: Final = ("llm", "board", "sizes")
"""Parts that take longer than all else: unless --only names them, drawn from what is recorded."""
PARTS: Final[Mapping[str, PartFacts]] = {
    name: PartFacts(
        title=part["title"],
        picture=part.get("picture", ""),
        seeds={scale: tuple(seeds) for scale, seeds in part.get("seeds", {}).items()},
    )
    for name, part in _DATA.items()
    if name not in ("limits", "paper")
}
"""The parts by name, in the order of the report."""
CLAIMS: Final[Mapping[str, Claim]] = {own.id: own for part in (*PARTS, "paper") for own in _claims(part)}
"""Every registered claim by its id, part by part; those of no part are under ``paper``."""


@cache
def claim(id: str) -> Claim:  # noqa: A002 (of Claim)
    """The registered claim of an id, or of the pattern that it fits; InputError if there is none."""
    known = [CLAIMS[id]] if id in CLAIMS else []
    # "theory.trained-mlp" fits "theory.trained-*"; a claim of just this name goes before.
    known += [own for own in CLAIMS.values() if own.id.endswith("*") and id.startswith(own.id[:-1])]
    require(bool(known) and not id.endswith("*"), "claim id", "be registered in claims.toml", id)
    require(not known[0].unmeasured, "claim id", "be of a claim that is measured", id)
    return known[0]


@dataclass(frozen=True)
class ClaimOutcome:
    """What the runs made here say of a registered claim.

    Attributes:
        id: The id of the claim; of a claim about several, with the name of one instead of ``*``.
        verdict: One of ``VERDICTS``.
        measured: Name -> number behind the verdict; None for a level that was never reached.
        scale: The scale at which it was measured, as "default (reduced): 300 rounds, 3 seeds".
        subject: The one that it is about, of a claim about several.
    """

    id: str
    verdict: Verdict = UNTESTED
    measured: Mapping[str, float | int | None] = field(default_factory=dict)
    scale: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        """Check the fields, and turn numbers of other libraries into Python's own."""
        require(claim(self.id).id.endswith("*") or not self.subject, f"subject of claim {self.id}", "be left out", self)
        require_choice(f"verdict of claim {self.id}", self.verdict, VERDICTS)
        measured = {str(name): _number(self.id, str(name), value) for name, value in self.measured.items()}
        object.__setattr__(self, "measured", measured)

    def row(self) -> dict[str, Any]:
        """The outcome with what the registry says of its claim, ready for JSON."""
        of = claim(self.id)
        says = f"{of.says} ({self.subject})" if self.subject else of.says
        told = {"claim": says, "source": of.where, "measures": of.measures, "rule": of.rule}
        return {"id": self.id, **told, "verdict": self.verdict, "measured": dict(self.measured), "scale": self.scale}


def judged(part: str, scale: str, outcomes: Iterable[ClaimOutcome]) -> list[ClaimOutcome]:
    """The outcomes of a part, at a scale in words where they do not name their own.

    Raises:
        InputError: If they are not of all claims of the part that need nothing, each once, and of no other part's.
    """
    found = [replace(each, scale=each.scale or scale) for each in outcomes]
    require_distinct_ids(f"claims of part {part}", [each.id for each in found])
    # A claim that needs the authors' curves, or is about several, may be left out.
    wanted = {own.id for own in CLAIMS.values() if own.part == part and not own.needs and not own.id.endswith("*")}
    ids = {each.id for each in found}
    missing = sorted(wanted - ids) + sorted(each for each in ids if claim(each).part != part)
    require(not missing, f"outcomes of part {part}", "be of all its claims and of no others", missing)
    return found


def decided(outcomes: Iterable[ClaimOutcome], scale: str) -> list[ClaimOutcome]:
    """The outcomes of rows made at a scale: whatever they measured, not tested where their claim takes a larger one."""
    # Names of scales do not sort by size, their places do.
    least = {name: n for n, name in enumerate(SCALE_NAMES)}
    enough = [(each, least[scale] >= least[claim(each.id).scale]) for each in outcomes]
    return [each if there else replace(each, verdict=UNTESTED) for each, there in enough]


def outcomes_json(outcomes: Sequence[ClaimOutcome]) -> str:
    """The outcomes as a JSON list of their rows.

    Raises:
        InputError: If two of them are of one id.
    """
    require_distinct_ids("claims", [each.id for each in outcomes])
    return json.dumps([each.row() for each in outcomes], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def named(name: str, text: str, separator: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names in the text of an option, joined by a separator; none where it is "".

    Raises:
        InputError: If one is not known, or there is nothing but separators.
    """
    found = tuple(filter(None, map(str.strip, text.split(separator))))
    require(bool(found) or not text, name, f"have names, joined by {separator!r}", text)
    for each in found:
        require_choice(name, each, known)
    return found


def rows(parts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every registered claim, of all parts or some, with the outcome of the recorded runs.

    Returns:
        A row for each claim (for each outcome of a claim about several): the fields of ``Claim`` and ``part``; seeds,
        command and picture (None where there is none) of its part; and, of what is recorded, verdict, measured and
        recorded, which says the date, the code and the sizes, data and subject. Without a record ``verdict`` is "not
        recorded", of a claim that nothing measures "not measured".

    Raises:
        InputError: If the record is damaged.
    """
    # A claim about several has an outcome for each of them.
    kept: dict[str, list[dict[str, Any]]] = {}
    for outcome in _recorded():
        kept.setdefault(claim(outcome["id"]).id, []).append(outcome)
    found = []
    for own in CLAIMS.values():
        if not parts or own.part in parts:
            facts = PARTS.get(own.part)  # None for claims that no part measures
            told: dict[str, Any] = dict.fromkeys(("command", "picture", "seeds", "data", "subject"))
            if facts is not None:
                flags = f" {own.needs} DIR" if own.needs else ""
                told["command"] = f"decomfl paper --only {own.part} --scale {own.scale}{flags}"
                told["picture"] = f"figures/{facts.picture}.png" if facts.picture else None
                told["seeds"] = {scale: list(seeds) for scale, seeds in facts.seeds.items()}
            nothing: dict[str, Any] = {
                "verdict": "not measured" if own.unmeasured else "not recorded",
                "measured": {},
                "recorded": "",
            }
            found += [{"part": own.part, **asdict(own), **told, **each} for each in kept.get(own.id, [nothing])]
    return found


def _recorded() -> list[dict[str, Any]]:
    try:
        kept: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"recorded outcomes must be a JSON file, got {RECORDED} ({error})") from None
    manifest.check(RECORDED)
    return kept


def require_distinct_ids(name: str, ids: Sequence[str]) -> None:
    """Raise InputError if one of the ids called ``name`` occurs twice."""
    repeated = sorted({each for each in ids if ids.count(each) > 1})
    require(not repeated, f"ids of {name}", "be distinct", repeated)


def _number(of: str, name: str, value: object) -> float | int | None:
    """Return ``value`` as an int, a finite float, a bool or None, else raise InputError."""
    if value is None or isinstance(value, bool):
        return value
    # numpy's numbers are Integral or Real, but JSON does not take them.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise InputError(f"measured {name!r} of claim {of} must be a finite number or None, got {value!r}")
