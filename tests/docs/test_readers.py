"""The C and the JavaScript that follow a log agree with the vectors and with `decomfl replay`, also on hostile logs."""

import copy
import json
import math
import random
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import decomfl_lab as lab
from decomfl_lab.protocol import log as logs
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.protocol.messages import ROUND_HEAD
from docs import reader_rules
from docs.reader_rules import Rule, rules
from tests.cases import rows_of
from tests.decomfl_lab.runs.rewritten import RECORD, chained, parted, with_record
from tests.docs.blocks import ROOT

GCC, NODE = shutil.which("gcc"), shutil.which("node")
KINDS = ("gaussian", "sphere", "rademacher")
C_RUNS = ("run", "run-sgd", "run-sphere", "run-private", "run-feedsign", "run-pool")
JS_RUNS = (*C_RUNS, "run-sign", "run-adamm")
OTHERS = ("run-grid", "run-hiso", "run-bfloat16", "run-float16", "run-compensated")
MAIN = ROOT / "docs" / "_static" / "rebuild" / "decomfl.mjs"
VECTORS = str(Path(__file__).with_name("vectors.mjs"))
needs_gcc = pytest.mark.skipif(GCC is None, reason="there is no gcc to compile the C reader with")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node to run the JavaScript reader with")

Reader = Callable[[Path], "subprocess.CompletedProcess[str]"]


def compiled(folder: Path, *flags: str, source: Path = ROOT / "examples" / "c" / "rebuild.c") -> Path:
    program = folder / "rebuild"
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run([str(GCC), *strict, *flags, str(source), "-o", str(program), "-lm"], check=True)
    return program


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("c"), "-ffp-contract=off")


@pytest.fixture(scope="module")
def watched_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For many logs, one that ends where it reads or writes beside its memory or a number overflows."""
    source = Path(__file__).with_name("outcomes.c")
    watched = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    return compiled(tmp_path_factory.mktemp("watched"), "-ffp-contract=off", *watched, source=source)


@pytest.fixture(params=[pytest.param("c", marks=needs_gcc), pytest.param("js", marks=needs_node)])
def reader(request: pytest.FixtureRequest) -> Reader:
    first = [str(request.getfixturevalue("c_program"))] if request.param == "c" else [str(NODE), str(MAIN)]
    return lambda log: subprocess.run([*first, str(log)], capture_output=True, text=True, check=False)


def told(folder: Path, name: str) -> list[str]:
    """The lines that a reader must print of a run, but for the last."""
    run = json.loads((folder / f"{name}.json").read_text())
    digests = [(0, json.loads(run["header"])["x0"]), *((own["round"] + 1, own["digest"]) for own in run["rounds"])]
    return [f"{r} {digest} agrees" for r, digest in digests if digest]


def node(*words: str) -> str:
    """What Node prints; it must end well, within its time and memory."""
    command = [str(NODE), "--max-old-space-size=500", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@needs_gcc
@pytest.mark.parametrize("name", C_RUNS)
def test_c_rebuilds_the_runs_of_its_rules_to_the_bit(c_program: Path, vectors: Path, name: str) -> None:
    ran = subprocess.run([c_program, vectors / f"{name}.dcl"], capture_output=True, text=True, check=False)
    assert (ran.stdout.splitlines()[:-1], ran.returncode, ran.stderr) == (told(vectors, name), 0, "")


@needs_gcc
def test_c_rebuilds_the_recorded_run_of_the_page(c_program: Path) -> None:
    ran = subprocess.run([c_program, MAIN.with_name("mnist.dcl")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 32


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def odd(folder: Path) -> Iterator[tuple[bytes, int, str]]:
    """Files that no reader goes on with, or none to the end, with the exit code and what is said of them."""
    content = (folder / "run.dcl").read_bytes()
    for name in OTHERS:
        yield (folder / f"{name}.dcl").read_bytes(), 2, "know"
    for cut in (content[:-5], content[:-16] + bytes(16), content + b"\x01\x02"):
        yield cut, 0, "not written whole"
    yield content[:8] + struct.pack("<I", 1) + content[12:], 2, "version 2"
    yield content[:8] + struct.pack("<I", 3) + content[12:], 2, "parameters in groups"
    yield content[:10], 2, ""
    text, bodies = parted(content)
    for start, packed in (({"by": "given"}, b""), ({"by": "file", "dtype": "float32", "bytes": 5}, b"12345")):
        header = json.dumps(json.loads(text) | {"start": start}).encode()
        yield chained(header, bodies, packed), 2, "not drawn from the noise stream|x_0 is not in the log|packed"


def test_a_reader_says_what_it_cannot_follow_in_words_and_by_its_exit_code(
    reader: Reader, vectors: Path, tmp_path: Path
) -> None:
    for n, (content, code, words) in enumerate(odd(vectors)):
        (tmp_path / "run.dcl").write_bytes(content)
        ran = reader(tmp_path / "run.dcl")
        assert (ran.returncode, bool(re.search(words, ran.stderr))) == (code, True), (n, ran.stderr)


def test_a_model_with_another_digest_is_noticed(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    shutil.copy(vectors / "run.dcl", tmp_path)
    with RunLog.open(tmp_path / "run.dcl") as log:
        log.rewrite(tmp_path / "run.dcl", {**log.header, "x0": "0" * 32})
    ran = reader(tmp_path / "run.dcl")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[0].endswith(f"DIFFERS from {'0' * 32}")


HOSTILE = json.loads(Path(__file__).with_name("hostile.json").read_text("utf-8"))
"""What is wrong, and the reason that every reader gives: of a header [path, value, reason], of the entry of round 1
[name, part, place in it, bytes there, whether they are its end, reason]. ``reasons`` has those that name nothing."""
FOLLOWED = {own.key for table in rules().values() for own in table} | {*HOSTILE["reasons"], *HOSTILE["named"]}
FOLLOWED |= {f"{field.name} of the message" for field in ROUND_HEAD.fields}
FOLLOWED -= {"option"}
"""All reasons that a reader in another language has; what else decomfl refuses is an option that only a run has."""
ELSEWHERE = "elsewhere"
"""The reason of a reader that does not know how this log goes on: others may."""


def reason(said: str) -> str:
    """Why a log is refused, in short: what is not as it must be, without files, places in lists and tables."""
    for short, pattern in HOSTILE["reasons"].items():
        if re.search(pattern, said):
            return str(short)
    named = re.split(r"must be (?:one that can be read|sound): (?=.* must )", said)[-1]
    named = re.split(r" (?:in|of) (?:the header|the log|log|round|the round|the records message)\b| must ", named)[0]
    named = re.sub(r"\[\d+\]", "", named)
    return named.removesuffix(" β").removesuffix(" R").removeprefix("start.tensors.").removeprefix("start.")


UNSOUND = [(b'"clip"', own) for own in (b'"a\\x"', b'"\\ud800"', b'"a\x01"', b'"\xc0\xaf"', b"clip", b'1:1,"clip"')] + [
    (b": 650", b": 0650"), (b": 650", b": 650,,"), (b": 650", b": NaN"), (b"}", b"]"), (b"false", b"False"),
]  # fmt: skip
"""Places in the text of a header, and what makes it no JSON there."""
MEMORY = {"shape": [2**22, 2**22], "draw": "constant", "scale": 1.0}


def changed(header: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The header with another value at a path."""
    other = copy.deepcopy(header)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = other
    for step in way:
        place = place[step]
    place[last] = value
    return other


def spliced(content: bytes, at: int, other: bytes, to_end: bool) -> bytes:
    return content[:at] + other + (b"" if to_end else content[at + len(other) :])


def beyond(own: Rule) -> list[Any]:
    """What the value of a key may not be, by its rule: the first below and above its bounds, and other kinds."""
    least, most = own.least, own.most
    never: list[Any] = [] if own.optional == 2 else [None]
    match own.kind:
        case "text":
            return [*never, 3, []]
        case "name":
            return [*never, "other", "", 3]
        case "hex":
            digits = int(most)
            return [*never, "0" * (digits - 1), "0" * (digits + 1), "F" * digits, 3]
        case "truth":
            return [*never, "yes", 1]
        case "table":
            return [*never, [], 3, "a"]
        case "list":
            return [*never, {}, 3, [3] * (own.longest + 1)]
        case "real":
            above = [math.nextafter(most, math.inf)] if most < 1e308 else []
            return [*never, "1", True, math.nextafter(least, -math.inf), *above]
    other = [least - 1, most + 1, 1.5, True]
    if own.kind == "whole":
        return [*never, *other, "1"]
    return [*never, *([1, each] for each in other), [1] * (own.longest + 1), "ab", {}]


def broken(header: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Headers that break a rule each: what is wrong, the reason, and the header."""
    for table, place in {"header": "", "config": "config.", "start": "start.", "tensor": "start.tensors.0."}.items():
        for own in rules()[table]:
            for value in beyond(own):
                yield f"{place}{own.key} = {value!r}", own.key, changed(header, place + own.key, value)


def strange(entry: LogEntry) -> Iterator[tuple[str, LogEntry]]:
    """Entries of round 1 that say of clients what cannot be, with the reason to refuse them."""
    entry = replace(entry, held=None, examples=None)
    asked, came = entry.sampled, entry.answered
    for sampled in ((asked[0],) * len(asked), (*asked[:-1], 100), ()):
        yield "sampled clients", replace(entry, sampled=sampled)
    for answered in ((came[0],) * len(came), (*came[:-1], min({*range(100)} - {*asked})), ()):
        yield "clients that answered", replace(entry, answered=answered)
    yield "rounds held", replace(entry, held=(*(0,) * (len(asked) - 1), 2))
    yield "numbers of examples", replace(entry, examples=(*(1,) * (len(came) - 1), 0))


def hostile(content: bytes, entries: list[LogEntry]) -> Iterator[tuple[str, str, bytes]]:
    """Logs under a true chain that nobody may follow: what is wrong, the reason that all readers give, the file."""
    text, bodies = parted(content)
    assert chained(text, bodies) == content
    header, first, own, *others = json.loads(text), *bodies
    memory = changed(changed(header, "d", 2**44), "start.tensors", [MEMORY])
    yield "memory", "d", chained(json.dumps(memory).encode(), bodies)
    texts = (b"null", b"[]", b"{}", b"{", b"\xff", b"[" * 100_000, *(text.replace(*wrong, 1) for wrong in UNSOUND))
    for n, other in enumerate(texts):
        yield f"header {n}", "run_seed", chained(other, bodies)
    for what, why, other in broken(header):
        yield what, why, chained(json.dumps(other).encode(), bodies)
    for path, value, why in HOSTILE["header"]:
        yield f"{path} = {value!r}", why, chained(json.dumps(changed(header, path, value)).encode(), bodies)
    at = 4  # behind the count of records
    for field in ROUND_HEAD.fields:
        size = struct.calcsize(f"<{field.form}")
        for value in () if field.form == "d" else (field.whole_numbers[0] - 1, field.whole_numbers[-1] + 1):
            if 0 <= value < 1 << (8 * size):
                splice = partial(spliced, at=at, other=value.to_bytes(size, "little"), to_end=False)
                why = f"{field.name} of the message"
                yield f"{field.name} = {value}", why, chained(text, [first, with_record(own, splice), *others])
        at += size
    for what, part, at, other, to_end, why in HOSTILE["entry"]:
        splice = partial(spliced, at=at, other=bytes.fromhex(other), to_end=to_end)
        start = 0 if part == "body" else own.rindex(RECORD)
        made = with_record(own, splice) if part == "record" else own[:start] + splice(own[start:])
        yield f"{part}: {what}", why, chained(text, [first, made, *others])
    for n, (why, entry) in enumerate(strange(entries[1])):
        yield f"clients {n}", why, chained(text, [first, logs.body_of(entry), *others])
    for at in (12, 40, len(content) // 2, content.rindex(RECORD) + 3, content.rindex(RECORD) + 60):
        yield f"bit of byte {at}", "changed", flipped(content, at)
    ends = [len(chained(text, bodies[:r])) for r in range(4)]
    for order in ((1, 0, 2), (0, 0, 1), (0, 2), (1,)):
        moved = b"".join(content[ends[n] : ends[n + 1]] for n in order)
        yield f"entries {order}", "changed", content[: ends[0]] + moved


Outcome = tuple[str, str]
"""Whether a log was "refused" or "rebuilt", or what else has ended its reader, and what was said."""


def by_python(log: Path) -> Outcome:
    own = nn.Linear(240, 1) if b'"model": "own"' in log.read_bytes() else None  # as many parameters as it had
    try:
        return "rebuilt", str(lab.replay(log, own))
    except lab.InputError as error:
        return "refused", str(error)


def by_c(program: Path, logs: list[Path]) -> list[Outcome]:
    own = {"ASAN_OPTIONS": "allocator_may_return_null=1"}
    with subprocess.Popen(
        [program, *logs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=own
    ) as process:
        told = process.communicate(timeout=60 + len(logs) / 10)[0]
    found, rest = [], told
    for _ in logs:
        said, _, rest = rest.partition("\f")
        code, _, rest = rest.partition("\n")
        kind = {"0": "rebuilt", "1": "rebuilt", "2": "refused"}.get(code, f"exit code {process.returncode}")
        lines = [line for line in said.splitlines() if "AddressSanitizer failed to allocate" not in line]
        lines = [line for line in lines if "not written whole" not in line]
        if kind == "refused":  # the digests of before are none of its reason
            lines = [line for line in lines if not re.match(r"\d+ [0-9a-f]{32} ", line)]
        found.append((kind, "\n".join(lines) if kind == "refused" else (lines or [said])[-1]))
    return found


Outcomes = Callable[[dict[str, bytes]], dict[str, dict[str, Outcome]]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What the readers that there are make of logs, {reader: {name: outcome}}; why one is refused is a short line."""
    readers: dict[str, Callable[[list[Path]], list[Outcome]]] = {
        "python": lambda logs: [by_python(log) for log in logs]
    }
    if GCC is not None:
        readers["c"] = partial(by_c, request.getfixturevalue("watched_program"))
    if NODE is not None:
        program = str(Path(__file__).with_name("outcomes.mjs"))
        readers["javascript"] = lambda logs: [(kind, said) for kind, said in json.loads(node(program, *map(str, logs)))]
    folder = tmp_path_factory.mktemp("logs")

    def found(logs: dict[str, bytes]) -> dict[str, dict[str, Outcome]]:
        paths = [folder / f"{n}.dcl" for n in range(len(logs))]
        for path, content in zip(paths, logs.values(), strict=True):
            path.write_bytes(content)
        made = {reader: dict(zip(logs, read(paths), strict=True)) for reader, read in readers.items()}
        refused = [said for own in made.values() for kind, said in own.values() if kind == "refused"]
        assert [said for said in refused if not said or "\n" in said or len(said) > 2000] == []
        return made

    return found


def test_every_reader_refuses_a_hostile_log_for_the_same_reason(outcomes: Outcomes, vectors: Path) -> None:
    with RunLog.open(vectors / "run.dcl", write=False) as log:
        table = list(hostile(log.content(), list(log.entries())))
    found = outcomes({what: content for what, _, content in table})
    other = {
        (reader, what): (why, *own[what])
        for reader, own in found.items()
        for what, why, _ in table
        if own[what][0] != "refused" or reason(own[what][1]) not in (why, ELSEWHERE)
    }
    assert other == {}


def test_every_reader_says_which_version_has_low_rank_directions(outcomes: Outcomes) -> None:
    for own in outcomes({"old": (ROOT / "tests" / "old" / "low-rank.dcl").read_bytes()}).values():
        assert own["old"][0] == "refused"
        assert "must be 1, as only version 0.1 of decomfl-lab has low-rank directions" in own["old"][1]


def unfinished(content: bytes) -> dict[str, bytes]:
    """Logs of which not all is checked, or not all is there, or not all agrees."""
    text, bodies = parted(content)
    header = json.loads(text)
    last = max(r for r, body in enumerate(bodies) if body[8] & 2)
    other = [*bodies[:last], bodies[last][:9] + bytes(16) + bodies[last][25:], *bodies[last + 1 :]]
    return {
        "whole": content,
        "without the last entry": chained(text, bodies[:-1]),
        "with half of the last entry": content[:-40],
        "without a round": chained(text, []),
        "of another x_0": chained(json.dumps(changed(header, "x0", "0" * 32)).encode(), bodies),
        "of another model": chained(text, other),
    }


def test_every_reader_closes_with_the_sentence_of_replay(outcomes: Outcomes, vectors: Path) -> None:
    found = outcomes(unfinished((vectors / "run.dcl").read_bytes()))
    assert all(own == found["python"] for own in found.values()), found
    assert "so they are not checked; the log ends before the 8 rounds" in found["python"]["without the last entry"][1]


ODD = (None, True, -1, 0, 1.5, 2**53, 2**64, 1e308, "", "toString", "9" * 20, [], [[]], {}, {"toString": 1}, "x" * 5000)


def places(value: Any, path: str = "") -> Iterator[str]:
    """The path to each value of a header."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, own in inner:
        yield f"{path}{key}"
        yield from places(own, f"{path}{key}.")


def mutated(draw: random.Random, text: bytes, bodies: list[bytes]) -> bytes:
    """The log with something else somewhere, under a true chain and true checksums unless these are what is hit."""
    r = draw.randrange(len(bodies))

    def hit(content: bytes) -> bytes:
        at, kind = draw.randrange(max(len(content), 1)), draw.randrange(4)
        other = draw.choice([b"\0", b"\xff", b"\xff\xff\xff\xff", draw.randbytes(1), draw.randbytes(4)])
        return content[:at] + (b"" if kind == 0 else other) + content[at + (len(other) if kind == 1 else 1) :]

    match draw.randrange(5):
        case 0:
            text = hit(text)
        case 1:
            header = json.loads(text)
            text = json.dumps(changed(header, draw.choice(list(places(header))), draw.choice(ODD))).encode()
        case 2:
            bodies = [*bodies[:r], hit(bodies[r]), *bodies[r + 1 :]]
        case 3:
            bodies = [*bodies[:r], with_record(bodies[r], hit), *bodies[r + 1 :]]
        case _:
            return hit(chained(text, bodies))
    return chained(text, bodies)


def apart(found: dict[str, dict[str, Outcome]]) -> dict[str, list[Outcome]]:
    """The logs of which the readers do not make the same, or that end one of them otherwise, with what each makes."""
    other = {}
    for what in found["python"]:
        every = [own[what] for own in found.values()]
        kinds = {kind for kind, said in every if kind != "refused" or reason(said) != ELSEWHERE}
        kind, said = found["python"][what]
        by_options = kind == "refused" and reason(said) not in FOLLOWED  # which only who makes the run looks at
        if kinds - {"refused", "rebuilt"} or (len(kinds) > 1 and not by_options):
            other[what] = every
    return other


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of a rate or a scalar as large: x is infinite
@pytest.mark.parametrize("count", [200, pytest.param(100_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["run", "run-pool"])
def test_a_mutation_of_a_log_is_accepted_by_all_readers_or_by_none(
    outcomes: Outcomes, vectors: Path, name: str, count: int
) -> None:
    draw, parts, refused = random.Random(1), parted((vectors / f"{name}.dcl").read_bytes()), 0
    for first in range(0, count // 2, 500):  # half of them of each log
        found = outcomes({str(n): mutated(draw, *parts) for n in range(first, min(first + 500, count // 2))})
        assert apart(found) == {}
        refused += sum(kind == "refused" for kind, _ in found["python"].values())
    assert count / 4 < refused < count / 2.2


def test_the_rules_of_both_readers_are_those_that_python_has() -> None:
    for path in (reader_rules.C, reader_rules.JAVASCRIPT):
        text = path.read_text()
        assert text == reader_rules.written(path, text)
        other = text.replace('"281474976710656"', '"281474976710655"')
        assert other != text
        assert reader_rules.written(path, other) == text


def counted(r: int, K: int = 1, P: int = 1) -> bytes:
    """The body of round r's entry: K·P signs in one bit each, along directions whose seeds are the run's."""
    record = struct.pack("<IIdHHBBB", 1, r, 0.01, K, P, 2, 1, 128 | 3) + bytes(-(-K * P // 8))
    clients = struct.pack("<IIB", 1, 1, 0) + bytes(24)  # one was sampled, and answered: no flags, no digest
    return clients + RECORD + struct.pack("<II", len(record), zlib.crc32(record)) + record


def heavy(content: bytes) -> Iterator[tuple[str, str, bytes]]:
    """What it is, what the page says of it, and a log that would fill a browser or keep it busy; true chains, all."""
    header = {**json.loads(parted(content)[0]), "x0": "0" * 32}

    def of(d: int, *bodies: bytes, pad: int = 0, cut: float | None = None) -> bytes:
        tensor = {"draw": "normal", "scale": 1.0, "shape": [d], "cut": cut}
        start = {**header["start"], "tensors": [tensor]}
        return chained(json.dumps({**header, "d": d, "start": start, "source": "a" * pad}).encode(), bodies)

    bomb = json.dumps({**header, "start": {"by": "file", "dtype": "float32", "bytes": 100}}).encode()
    yield "nothing", "begins in another way", b""
    yield "any bytes", "begins in another way", random.Random(1).randbytes(10**6)
    yield "a short one", "was changed or cut", content[:200]
    yield "a long file", "16,000,004 bytes, and the page takes at most 16,000,000", content[:4] * 4_000_001
    yield "a long header", "bytes of header", of(9, pad=1_100_000)
    yield "d", "4,000,001 parameters, and the page takes at most 4,000,000: decomfl replay takes more", of(4_000_001)
    yield "d that no machine has", "281,474,976,710,656 parameters", of(2**48)
    yield "rounds", "20,001 rounds", of(9, *map(counted, range(20_001)))
    yield "numbers", "4,063,170 numbers", of(9, counted(0, 62, 65_535))
    yield "hours", "131,070,000,000 steps (numbers × parameters)", of(1_000_000, counted(0, 2, 65_535))
    yield "a packed start", "is packed in the log", chained(bomb, [counted(0)], zlib.compress(bytes(10**8), 9)[:100])
    yield "minutes", "busy", of(1_000_000, counted(0, 1, 65_535))
    yield "a start that is drawn often", "100000 1 false", of(100_000, cut=0.1)


@needs_node
@pytest.mark.parametrize("hostile", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_no_log_keeps_the_worker_of_the_page_busy_or_fills_its_memory(
    hostile: bool, vectors: Path, tmp_path: Path
) -> None:
    table = list(heavy((vectors / "run.dcl").read_bytes())) if hostile else []
    table += [(name, f" {len(told(vectors, name))} true", (vectors / f"{name}.dcl").read_bytes()) for name in JS_RUNS]
    paths = [tmp_path / f"{n}.dcl" for n in range(len(table))]
    for path, (_, _, content) in zip(paths, table, strict=True):
        path.write_bytes(content)
    found, memory = json.loads(node(str(MAIN.parents[3] / "tests" / "docs" / "worker.mjs"), *map(str, paths)))
    assert [(what, said) for (what, why, _), (said, _) in zip(table, found, strict=True) if why not in said] == []
    assert max(seconds for _, seconds in found) < 10  # on a quiet machine 3, after which "busy" is ended
    assert memory < 3000  # MB; on a quiet machine 400, as a busy one collects garbage late


@needs_node
@pytest.mark.parametrize(("words", "code", "said"), rows_of(__file__)["used"])
def test_the_javascript_reader_says_how_it_is_used(words: list[str], code: int, said: str) -> None:
    ran = subprocess.run([str(NODE), str(MAIN), *words], capture_output=True, text=True, check=False)
    assert (ran.returncode, said in ran.stdout + ran.stderr, len(ran.stderr.splitlines())) == (code, True, code // 2)


@needs_gcc
def test_c_makes_the_directions_of_the_vectors(c_program: Path, vectors: Path) -> None:
    for own in json.loads((vectors / "stream.json").read_text())["directions"]:
        kind = str(KINDS.index(own["distribution"]))
        words = [c_program, "--direction", kind, own["key"], str(own["p"]), str(own["d"])]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == own["bits"].split()


@needs_node
def test_javascript_agrees_with_the_vectors_of_stream_starts_and_hashes(vectors: Path) -> None:
    assert json.loads(node(VECTORS, str(vectors))) == []


@needs_gcc
def test_a_fused_multiply_add_is_noticed(vectors: Path, tmp_path: Path) -> None:
    if "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("the processor has no fused multiply-add")
    program = compiled(tmp_path, "-ffp-contract=fast", "-mfma")
    ran = subprocess.run([program, vectors / "run.dcl"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "DIFFERS" in ran.stdout) == (1, True)


def test_each_reader_has_less_than_700_lines_without_its_rules() -> None:
    before, _, rest = MAIN.with_suffix(".js").read_text().partition(reader_rules.FIRST)
    in_c = "".join((ROOT / "examples" / "c" / name).read_text() for name in ("decomfl.h", "json.h"))
    for text in (before + rest.partition(reader_rules.LAST)[2], in_c):
        assert len(text.splitlines()) < 700
