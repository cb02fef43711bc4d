"""The table of the paper's claims, ``claims.toml``, and their recorded outcomes; ``claim_verdicts`` decides new ones.

The sentences of the paper that measurements speak on are those of ``theory.findings`` that name them in their runs. A
part judges its claims by id.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from decomfl_lab.errors import InputError, require, require_choice
from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow import manifest
from theory.findings.data import RAW

if TYPE_CHECKING:
    from theory.findings.finding import Role

Verdict = Literal[
    "holds",
    "does not hold",
    "depends on how it is counted",
    "not tested at this scale",
    "not decided: our baseline did not train",
    "not decided: the authors' setting is not known",
]
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)
UNTESTED: Final = "not tested at this scale"
UNHEALTHY: Final = "not decided: our baseline did not train"
"""A run that the claim rests on is ill, see ``workflow.verdicts.health``."""
UNKNOWN: Final = "not decided: the authors' setting is not known"
"""Our runs do not bear the claim out, and neither do they refute it, see ``Claim.unknown``."""
SCALE_NAMES: Final = ("smoke", "default", "full")  # from small to large
WITHOUT_RUNS: Final = ("memory", "theory", "audit")
"""Parts that compute, and train nothing but where a claim of theirs is ``exempt``."""
RECORDED: Final = Path(__file__).parents[2] / "results" / "claims.json"
"""The outcomes of the recorded runs: ``decomfl paper --from-recorded --record paper_repro/results`` writes them."""


@dataclass(frozen=True)
class JudgedSentence:
    """A sentence of the paper with its one status."""

    label: str  # that of its entry: ``decomfl audit --statement LABEL`` says all
    quote: str  # the paper's words
    place: str  # where they stand
    status: str  # what is to be said of it, by proofs and by runs
    runs: Mapping[str, Role]  # the measurements that speak on it, by id, each with its role


_OF_ENTRY: Final = ("label", "place", "status", "runs")
_ALL: Final = tuple(
    JudgedSentence(quote=raw.get("quote") or raw["says"], **{name: raw[name] for name in _OF_ENTRY})
    for raw in RAW
    if "runs" in raw
)


@cache
def sentences(measurement: str) -> tuple[JudgedSentence, ...]:
    """The sentences that a measurement speaks on: first those that it decides, alone, and those of the experiments."""

    def rank(sentence: JudgedSentence) -> tuple[bool, int, bool]:
        return sentence.runs[measurement] == "context", len(sentence.runs), not sentence.place.endswith("Section 5")

    return tuple(sorted((said for said in reversed(_ALL) if measurement in said.runs), key=rank))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A registered claim; ``claims.toml`` says what the fields are."""

    id: str  # the part, a dot, and its name there; a name that ends in ``*`` stands for a claim about each of several
    question: str = ""  # what is asked beyond the paper; without one, the sentences that name it are (``sentences``)
    where: str = ""
    measures: str
    rule: str  # the rule with the thresholds of ``claims.toml`` in it
    scale: str  # the least scale that can decide it; ``decided`` holds every outcome to it
    needs: str = ""
    # patterns of the names of the numbers that decide it, of which a page has room for a few; () for all
    tells: tuple[str, ...] = ()
    unknown: str = ""  # what nobody knows of the setting of the authors' runs, so that ours cannot refute it
    # patterns of the series whose runs have to be healthy: reading, panel, row, task, series and model, as far as the
    # part has them, joined by ", "; () where the claim is exempt, or its part trains nothing
    rests: tuple[str, ...] = ()
    together: bool = False  # whether these are compared at equal rounds: evaluations up to the last common one count
    exempt: str = ""  # why no health is asked of the training runs that it is about
    scope: str  # of what its verdict is: by proof, in the paper's own data, in our setting or not decided
    line: Mapping[str, Any] = field(default_factory=dict)  # for ``claim_verdicts``; {} of those that a function judges
    words: str = ""  # the scale of its outcome in words, where that is not its part's

    @property
    def part(self) -> str:
        """The part that judges it."""
        return self.id.partition(".")[0]

    @property
    def says(self) -> str:
        """The question, or the paper's words in quotation marks."""
        return self.question or f"“{sentences(self.id)[0].quote}”"

    @property
    def place(self) -> str:
        """Where the paper says it, or what the question is about."""
        return self.where or sentences(self.id)[0].place

    @property
    def status(self) -> str:
        """That of the sentence which it is asked by; "" of a question."""
        return "" if self.question else sentences(self.id)[0].status


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """A part of the report, before it is made."""

    title: str  # the heading of its section
    picture: str = ""  # the stem of the file in OUT/figures that shows it; "" for a table
    seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the seeds of its runs at each scale


# The file has a table a part; beside them "words" and "limits" (which all parts share).
_DATA: Final[dict[str, Any]] = table_beside(__name__, "claims.toml")
WORDS: Final[Mapping[str, str]] = _DATA.pop("words")  # what the words of scales, readings and countings mean
_HEALTH: Final = ("rests", "together", "exempt")  # the fields about the runs below a claim
_LINE: Final = (  # those of its line
    *("numbers", "decides", "of", "rows", "series", "given", "level", "column", "take", "along", "error", "per"),
)
_LIMITS: Final = {name: SimpleNamespace(**part.get("limits", {})) for name, part in _DATA.items() if name != "limits"}


def limits(part: str = "") -> SimpleNamespace:
    """The thresholds of a part, or those that all share, by name."""
    return _LIMITS[part] if part else SimpleNamespace(**_DATA["limits"])


def _claims(part: str) -> list[Claim]:
    """The claims of a part; those with ``like`` take from another what they do not name."""
    rows = _DATA[part].get("claims", {})
    common = {"scale": _DATA[part]["scale"], "scope": _DATA[part]["scope"], "measures": "", "rule": ""}
    # A rule may name a threshold of its own part, of all parts, or as {part.name} of another part.
    thresholds = {**_DATA["limits"], **vars(_LIMITS[part]), **_LIMITS}
    claims = []
    for name, row in rows.items():
        # "saving" is a claim of this part, "fig2.saving" one of another.
        of_part, dot, like = row.get("like", "").rpartition(".")
        base = _DATA[of_part]["claims"][like] if dot else rows.get(like, {})
        # What it rests on is its own: the claim that it is like may be about other runs.
        base = {key: value for key, value in base.items() if key not in _HEALTH}
        merged = {**common, **base, **row}
        merged.pop("like", None)
        line = {key: merged.pop(key) for key in _LINE if key in merged}
        merged |= {key: str(merged[key]).format(**thresholds) for key in ("rule", "measures")}
        if "rests" not in merged and not merged.get("exempt") and part not in WITHOUT_RUNS:
            merged["rests"] = dict.fromkeys(_series(line))
        merged |= {key: tuple(merged.get(key, ())) for key in ("tells", "rests")}
        claims.append(Claim(id=f"{part}.{name}", line=line if "numbers" in line else {}, **merged))
    return claims


def _series(row: Mapping[str, Any]) -> Iterator[str]:
    """The patterns of the series that a line, or a group of its numbers, is about, for whatever its names stand."""
    named = row.get("series", ())
    yield from (re.sub(r"\{\w+\}", "*", pattern) for pattern in ([named] if isinstance(named, str) else named))
    for number in row.get("numbers", ()):
        yield from _series(number)


ON_GPU: Final = ("fig2", "fig3", "smollm2", "hessian")
"""Parts with runs that a GPU shortens, in the order of their worth."""
DEAR: Final = ("llm", "sizes")
"""Parts that take longer than all else: unless --only names them, drawn from what is recorded."""
PARTS: Final[Mapping[str, PartFacts]] = {
    name: PartFacts(
        title=part["title"],
        picture=part.get("picture", ""),
        seeds={scale: tuple(seeds) for scale, seeds in part.get("seeds", {}).items()},
    )
    for name, part in _DATA.items()
    if name != "limits"
}
"""The parts by name, in the order of the report."""
CLAIMS: Final[Mapping[str, Claim]] = {registered.id: registered for part in PARTS for registered in _claims(part)}
"""Every registered claim by its id, part by part."""


@cache
def claim(id: str) -> Claim:  # noqa: A002 (of Claim)
    """The registered claim of an id, or of the pattern that it fits; InputError if there is none."""
    fitting = [CLAIMS[id]] if id in CLAIMS else []
    # "theory.trained-mlp" fits "theory.trained-*"; a claim of just this name goes before.
    fitting += [CLAIMS[name] for name in CLAIMS if name.endswith("*") and id.startswith(name[:-1])]
    require(bool(fitting) and not id.endswith("*"), "claim id", "be registered in claims.toml", id)
    return fitting[0]


@dataclass(frozen=True)
class ClaimOutcome:
    """What the runs made here say of a registered claim."""

    id: str  # the id of the claim; of a claim about several, with the name of one instead of ``*``
    verdict: Verdict = UNTESTED  # one of ``VERDICTS``
    # name -> number behind the verdict; None for a level that was never reached
    measured: Mapping[str, float | int | None] = field(default_factory=dict)
    scale: str = ""  # the scale at which it was measured, as "default (reduced): 300 rounds, 3 seeds"
    subject: str = ""  # the one that it is about, of a claim about several

    def __post_init__(self) -> None:
        """Turn numbers of other libraries into Python's own; InputError for what is no number."""
        given: Mapping[str, object] = self.measured
        measured: dict[str, float | int | None] = {}
        for name, value in given.items():
            # numpy's numbers are Integral or Real, but JSON does not take them.
            if value is None or isinstance(value, bool):
                measured[str(name)] = value
            elif isinstance(value, Integral):
                measured[str(name)] = int(value)
            elif isinstance(value, Real) and math.isfinite(value):
                measured[str(name)] = float(value)
            else:
                raise InputError(f"measured {name!r} of claim {self.id} must be a finite number or None, got {value!r}")
        object.__setattr__(self, "measured", measured)

    def row(self) -> dict[str, Any]:
        """The outcome with what the registry says of its claim, ready for JSON."""
        asked = claim(self.id)
        says = f"{asked.says} ({self.subject})" if self.subject else asked.says
        row = {"id": self.id, "claim": says, "source": asked.place, "status": asked.status}
        row |= {"measures": asked.measures, "rule": asked.rule, "verdict": self.verdict}
        return {**row, "measured": dict(self.measured), "scale": self.scale}


def decided(outcomes: Iterable[ClaimOutcome], scale: str) -> list[ClaimOutcome]:
    """The outcomes of rows made at a scale: whatever they measured, not tested where their claim takes a larger one."""
    # Names of scales do not sort by size, their places do.
    size = {name: n for n, name in enumerate(SCALE_NAMES)}
    held = []
    for outcome in outcomes:
        tested = size[scale] >= size[claim(outcome.id).scale]
        held.append(outcome if tested else replace(outcome, verdict=UNTESTED))
    return held


def outcomes_json(outcomes: Sequence[ClaimOutcome]) -> str:
    """The outcomes as a JSON list of their rows."""
    return json.dumps([each.row() for each in outcomes], indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def named(name: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names in the text of an option, joined by commas; none where it is "".

    Raises:
        InputError: If one is not known, or there is nothing but commas.
    """
    chosen = tuple(filter(None, map(str.strip, text.split(","))))
    require(bool(chosen) or not text, name, "have names, joined by ','", text)
    for choice in chosen:
        require_choice(name, choice, known)
    return chosen


def rows(parts: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every registered claim, of all parts or some, with the outcome of the recorded runs.

    Returns:
        A row for each claim (for each outcome of a claim about several): the fields of ``Claim``, ``part``, says and
        place; the sentences of the paper that it speaks on, each with its status; seeds, command and picture (None
        where there is none) of its part; and, of what is recorded, verdict, measured and recorded, which says the
        date, the code and the sizes, data and subject. Without a record ``verdict`` is "not recorded".

    Raises:
        InputError: If the record is damaged.
    """
    # A claim about several has an outcome for each of them.
    recorded: dict[str, list[dict[str, Any]]] = {}
    for outcome in _recorded():
        recorded.setdefault(claim(outcome["id"]).id, []).append(outcome)
    table = []
    for asked in CLAIMS.values():
        if not parts or asked.part in parts:
            part = PARTS[asked.part]
            flags = f" {asked.needs} DIR" if asked.needs else ""
            row: dict[str, Any] = {
                "part": asked.part,
                **{name: value for name, value in asdict(asked).items() if name not in (*_HEALTH, "line", "words")},
                "says": asked.says,
                "place": asked.place,
                "sentences": [asdict(sentence) for sentence in sentences(asked.id)],
                "command": f"decomfl paper --only {asked.part} --scale {asked.scale}{flags}",
                "picture": f"figures/{part.picture}.png" if part.picture else None,
                "seeds": {scale: list(seeds) for scale, seeds in part.seeds.items()},
                **dict.fromkeys(("data", "subject")),
            }
            nothing = {"verdict": "not recorded", "measured": {}, "recorded": ""}
            table += [{**row, **outcome} for outcome in recorded.get(asked.id, [nothing])]
    return table


def recorded_outcomes() -> list[ClaimOutcome]:
    """The recorded outcomes; ``scale`` says the date, the code and the sizes."""
    names = ("id", "verdict", "measured", "subject")
    return [ClaimOutcome(scale=row["recorded"], **{name: row[name] for name in names}) for row in _recorded()]


def verdicts() -> dict[str, str]:
    """The recorded verdicts by id."""
    return {row["id"]: row["verdict"] for row in _recorded()}


def otherwise(outcome: ClaimOutcome) -> str:
    """What the recorded runs say of a claim where that is another verdict than the outcome's; else ""."""
    recorded = verdicts().get(outcome.id, outcome.verdict)
    differs = recorded != outcome.verdict and outcome.verdict in VERDICTS[:3]
    return f"the recorded runs say: {recorded}" if differs else ""


def _recorded() -> list[dict[str, Any]]:
    """The rows of ``RECORDED``, as ``recordings.save_outcomes`` wrote them; none where there is no such file."""
    try:
        kept: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InputError(f"recorded outcomes must be a JSON file, got {RECORDED} ({error})") from None
    manifest.check(RECORDED)
    return kept
