"""The C and the JavaScript that follow a log agree with the vectors and with `decomfl replay`, also on hostile logs."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import decomfl_lab as lab
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.conformance import write_conformance
from tests.decomfl_lab.protocol.chained import chained, parted, with_record
from tests.docs.blocks import ROOT

GCC, NODE = shutil.which("gcc"), shutil.which("node")
KINDS = ("gaussian", "sphere", "rademacher")
C_RUNS = ("run", "run-sgd", "run-sphere", "run-private", "run-feedsign", "run-pool")
JS_RUNS = (*C_RUNS, "run-sign", "run-adamm")
OTHERS = ("run-low-rank", "run-grid", "run-hiso", "run-bfloat16", "run-float16", "run-compensated")
MAIN = ROOT / "docs" / "_static" / "rebuild" / "decomfl.mjs"
needs_gcc = pytest.mark.skipif(GCC is None, reason="there is no gcc to compile the C reader with")
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node to run the JavaScript reader with")

Reader = Callable[[Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    write_conformance(folder)
    return folder


def compiled(folder: Path, *flags: str) -> Path:
    program = folder / "rebuild"
    source = ROOT / "examples" / "c" / "rebuild.c"
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run([str(GCC), *strict, *flags, str(source), "-o", str(program), "-lm"], check=True)
    return program


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("c"), "-ffp-contract=off")


@pytest.fixture(scope="module")
def watched_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that ends, not with exit code 2, where it reads or writes beside its memory or a number overflows."""
    watched = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    return compiled(tmp_path_factory.mktemp("watched"), "-ffp-contract=off", *watched)


@pytest.fixture(params=[pytest.param("c", marks=needs_gcc), pytest.param("js", marks=needs_node)])
def reader(request: pytest.FixtureRequest) -> Reader:
    first = [str(request.getfixturevalue("c_program"))] if request.param == "c" else [str(NODE), str(MAIN)]
    return lambda log: subprocess.run([*first, str(log)], capture_output=True, text=True, check=False)


def told(folder: Path, name: str) -> list[str]:
    """The lines that a reader must print of a run, but for the last."""
    run = json.loads((folder / f"{name}.json").read_text())
    digests = [(0, json.loads(run["header"])["x0"]), *((own["round"] + 1, own["digest"]) for own in run["rounds"])]
    return [f"{r} {digest} agrees" for r, digest in digests if digest]


def run_js(code: str, *words: str) -> str:
    program = (
        f"import {{ decomfl, rebuild }} from {json.dumps(MAIN.as_uri())}; import {{ readFileSync }} from 'node:fs';"
    )
    node = [str(NODE), "--max-old-space-size=500", "--input-type=module", "-e", program + code]
    ran = subprocess.run([*node, *words], capture_output=True, text=True, check=False, timeout=120)
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


@needs_node
def test_javascript_rebuilds_the_runs_of_its_rules_to_the_bit(vectors: Path) -> None:
    each = "(path) => rebuild(decomfl.readLog(readFileSync(path))).compared"
    code = f"console.log(JSON.stringify(process.argv.slice(1).map({each})))"
    found = json.loads(run_js(code, *(str(vectors / f"{name}.dcl") for name in JS_RUNS)))
    for name, compared in zip(JS_RUNS, found, strict=True):
        assert [f"{own['round']} {own['found']} agrees" for own in compared] == told(vectors, name), name


def test_a_reader_says_which_runs_it_does_not_know(reader: Reader, vectors: Path) -> None:
    for name in OTHERS:
        ran = reader(vectors / f"{name}.dcl")
        assert ran.returncode == 2
        assert "know" in ran.stderr


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_a_damaged_log_is_refused_wherever_a_bit_differs(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    content = (vectors / "run.dcl").read_bytes()
    last = content.rindex(b"DC\x02\x04")
    for at in (0, 8, 12, 40, len(content) // 2, last + 3, last + 8, last + 60, len(content) - 1):
        (tmp_path / "run.dcl").write_bytes(flipped(content, at))
        ran = reader(tmp_path / "run.dcl")
        assert (ran.returncode, at) == (2, at)
        assert ran.stderr.count("\n") == 1


def test_rounds_that_were_exchanged_doubled_or_left_out_are_refused(
    reader: Reader, vectors: Path, tmp_path: Path
) -> None:
    content = (vectors / "run.dcl").read_bytes()
    text, bodies = parted(content)
    ends = [len(chained(text, bodies[:r])) for r in range(4)]
    head, entries = content[: ends[0]], [content[ends[r] : ends[r + 1]] for r in range(3)]
    for order in ((1, 0, 2), (0, 0, 1), (0, 2), (1,)):
        (tmp_path / "run.dcl").write_bytes(head + b"".join(entries[n] for n in order))
        assert reader(tmp_path / "run.dcl").returncode == 2, order


def test_an_entry_that_was_not_written_whole_is_left_out_with_a_word(
    reader: Reader, vectors: Path, tmp_path: Path
) -> None:
    content = (vectors / "run.dcl").read_bytes()
    for cut in (content[:-5], content[:-16] + bytes(16), content + b"\x01\x02"):
        (tmp_path / "run.dcl").write_bytes(cut)
        ran = reader(tmp_path / "run.dcl")
        assert ran.returncode == 0
        assert "not written whole" in ran.stderr


def test_a_log_of_another_version_or_without_x_0_is_refused(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    content = (vectors / "run.dcl").read_bytes()
    (tmp_path / "old.dcl").write_bytes(content[:8] + struct.pack("<I", 1) + content[12:])
    assert "version 2" in reader(tmp_path / "old.dcl").stderr
    (tmp_path / "short.dcl").write_bytes(content[:10])
    assert reader(tmp_path / "short.dcl").returncode == 2


def test_a_model_with_another_digest_is_noticed(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    shutil.copy(vectors / "run.dcl", tmp_path)
    with RunLog.open(tmp_path / "run.dcl") as log:
        log.rewrite(tmp_path / "run.dcl", {**log.header, "x0": "0" * 32})
    ran = reader(tmp_path / "run.dcl")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[0].endswith(f"DIFFERS from {'0' * 32}")


def test_x_0_that_is_in_no_file_is_asked_for_in_vain(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    with RunLog.open(vectors / "run.dcl", write=False) as log:
        given = {**log.header, "start": {"by": "given"}}
        packed = {**log.header, "start": {"by": "file", "dtype": "float32", "bytes": 5}}
    RunLog.create(tmp_path / "given.dcl", given).close()
    RunLog.create(tmp_path / "packed.dcl", packed, b"12345").close()
    for name in ("given.dcl", "packed.dcl"):
        ran = reader(tmp_path / name)
        assert ran.returncode == 2
        assert re.search("not drawn from the noise stream|x_0 is not in the log|packed", ran.stderr)


Header = dict[str, Any]
MEMORY = {"d": 2**44, "start": {"by": "stream", "key": "0" * 16, "tensors": [
    {"shape": [2**22, 2**22], "draw": "constant", "scale": 1.0}
]}}  # fmt: skip
IN_HEADER: list[tuple[str, Any, str]] = [
    ("run_seed", None, "run_seed in the header"),
    ("run_seed", -1, "run_seed in the header"),
    ("run_seed", 1.5, "run_seed in the header"),
    ("run_seed", 2**64, "run_seed in the header"),
    ("run_seed", "12", "run_seed in the header"),
    ("stream", 2, "stream of the log.* must be 1"),
    ("config", [], "config in the header.* must be a table"),
    *(("d", value, "d in the header.* must be a whole number") for value in (0, -1, 650.5, "650", 10**20)),
    *(("d", value, "elements of the tensors of x_0 must be d") for value in (649, 651, 2**40)),
    ("", MEMORY, "d in the header.* must fit into the"),
    ("x0", "0" * 31, "x0 in the header.* must be text"),
    ("x0", 3, "x0 in the header.* must be text"),
    ("start", 3, "start in the header.* must be a table"),
    ("start.tensors", 3, r"start\.tensors in the header.* must be a list"),
    ("start.tensors.0", 3, r"start\.tensors\[0\] in the header.* must be a table"),
    ("start.tensors.0.shape", "ab", r"start\.tensors\[0\]\.shape in the header"),
    ("start.tensors.0.shape", [-10, -64], r"start\.tensors\[0\]\.shape.* in the header"),
    ("start.tensors.0.shape", [10, None], r"start\.tensors\[0\]\.shape.* in the header"),
    ("start.tensors.0.shape", [2**30, 4], "elements of the tensors of x_0 must be d"),
    ("start.tensors.0.shape", [2**32, 2**32], "elements of the tensors of x_0 must be d"),
    ("start.tensors.1.shape", [9], "elements of the tensors of x_0 must be d"),
    ("start.tensors.0.draw", "toString", "draw must be one of constant, uniform, normal"),
    ("start.tensors.0.scale", 1e39, "scale must be a float32 number"),
    ("start.tensors.0.scale", -1.0, "scale must be 0 or more"),
    ("start.tensors.0.cut", 2.0, "cut must be left out unless draw is normal"),
    ("start.tensors.1", {"shape": [10], "draw": "normal", "scale": 1.0, "cut": 1e-9}, r"cut must be in 0\.1\.\.10"),
    *(
        ("start.key", key, "16 hexadecimal digits|start.key in the header")
        for key in ("0xFEEDFACECAFEBEE", "FEEDFACECAFEBEEF", "feedfacecafebee", "feedfacecafebeef0", "", 16 * "٣", 3)
    ),
    ("config.rounds", 0, "rounds R must be an integer of at least 1"),
    ("config.momentum", 1.0, r"momentum β must be in \[0, 1\)"),
    ("config.momentum_form", "other", "momentum_form must be one of torch, paper"),
    ("config.weight_decay", -1.0, "weight_decay must be finite and at least 0"),
    ("config.private_seeds", "yes", "private_seeds.* must be of type bool"),
]
UNREADABLE = "entry of round 1.* must be one that can be read"
IN_RECORD: list[tuple[int, str, tuple[Any, ...], str]] = [
    (0, "<I", (2,), UNREADABLE),
    (0, "<I", (0,), UNREADABLE),
    (4, "<I", (5,), f"{UNREADABLE}: record must be of"),
    *((8, "<d", (eta,), f"{UNREADABLE}: eta of the message") for eta in (0.0, -1.0, float("inf"), float("nan"))),
    *((16, "<HH", sizes, f"{UNREADABLE}: K and P must be 1 to 65535") for sizes in ((0, 3), (2, 0))),
    (16, "<HH", (65535, 65535), f"{UNREADABLE}: K·P must be at most 1073741820"),
    *((16, "<HH", sizes, UNREADABLE) for sizes in ((2, 4), (1, 3), (2**14, 2**14), (65535, 1), (1, 65535))),
    (20, "<B", (9,), f"{UNREADABLE}: distribution of the message must be below 4"),
    (21, "<B", (2,), f"{UNREADABLE}: stream version of the message must be 1"),
    (22, "<B", (5,), f"{UNREADABLE}: seeding of the message must be below 5"),
    (22, "<B", (1 | 128,), UNREADABLE),
    (39, "<I", (0x7FC00000,), f"{UNREADABLE}: scalars.* must be finite"),
]
PER_RUN_SIGNS = bytes([0, 1, 131])  # gaussian, the stream's version, no seeds, a bit a scalar
BODIES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("no body", lambda body: b"", UNREADABLE),
    ("clients that are not there", lambda body: b"\xff" * 8 + body[8:], UNREADABLE),
    ("another message", lambda body: body.replace(b"DC\2\4", b"DC\2\6"), UNREADABLE),
    ("a wrong checksum", lambda body: flipped(body, len(body) - 1), UNREADABLE),
    ("a record cut short", lambda body: with_record(body, lambda record: record[:10]), UNREADABLE),
    ("a byte too many", lambda body: with_record(body, lambda record: record + b"a"), UNREADABLE),
    (
        "4.3 billion signs of none",
        lambda body: with_record(body, lambda record: record[:16] + b"\xff" * 4 + PER_RUN_SIGNS),
        f"{UNREADABLE}: K·P must be at most 1073741820",
    ),
    (
        "a sign too many",
        lambda body: with_record(body, lambda record: record[:16] + struct.pack("<HH", 1, 3) + PER_RUN_SIGNS + b"\x0f"),
        f"{UNREADABLE}: bits after the signs",
    ),
]


def changed(header: Header, path: str, value: Any) -> Header:
    """The header with another value at a path, or, at none, with these values among its own."""
    other = copy.deepcopy(header)
    *way, last = path.split(".")
    place: Any = other
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    if path:
        place[int(last) if isinstance(place, list) else last] = value
    return other if path else {**other, **value}


def packed(record: bytes, at: int, layout: str, values: tuple[Any, ...]) -> bytes:
    content = bytearray(record)
    struct.pack_into(layout, content, at, *values)
    return bytes(content)


def hostile(content: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Logs under a true chain that nobody may follow: what is wrong, the reason that all readers give, the file."""
    text, bodies = parted(content)
    header = json.loads(text)
    for own in (b"null", b"[]", b"{", b"\xff", b"[" * 100_000):
        yield f"header {own[:4]!r}", "run_seed in the header", chained(own, bodies)
    for path, value, reason in IN_HEADER:
        yield f"{path} = {value!r}", reason, chained(json.dumps(changed(header, path, value)).encode(), bodies)
    first, own, *others = bodies
    for at, layout, values, reason in IN_RECORD:
        other = with_record(own, lambda record, at=at, layout=layout, values=values: packed(record, at, layout, values))
        yield f"record {at} {values}", reason, chained(text, [first, other, *others])
    for what, change, reason in BODIES:
        yield what, reason, chained(text, [first, change(own), *others])


OUTCOMES = """
const outcomes = process.argv.slice(1).map((path) => {
  try {
    const log = decomfl.readLog(readFileSync(path)), { compared } = rebuild(log);
    return ["rebuilt", decomfl.closing(log, compared)];
  } catch (error) {
    return [error.constructor === Error ? "refused" : error.constructor.name, error.message];
  }
});
console.log(JSON.stringify(outcomes));
"""
Outcome = tuple[str, str]
"""Whether a log was "refused" or "rebuilt", or what else has ended its reader, and what was said."""


def by_python(log: Path) -> Outcome:
    try:
        return "rebuilt", str(lab.replay(log))
    except lab.InputError as error:
        return "refused", str(error)


def by_c(program: Path, log: Path) -> Outcome:
    own = {"ASAN_OPTIONS": "allocator_may_return_null=1"}
    ran = subprocess.run([program, log], capture_output=True, text=True, check=False, timeout=60, env=own)
    kind = {0: "rebuilt", 1: "rebuilt", 2: "refused"}.get(ran.returncode, f"exit code {ran.returncode}")
    words = [line for line in ran.stderr.splitlines() if "AddressSanitizer failed to allocate" not in line]
    return kind, "\n".join(words) if kind == "refused" else ran.stdout.strip().rpartition("\n")[2] or ran.stderr


@pytest.fixture(params=["python", pytest.param("c", marks=needs_gcc), pytest.param("js", marks=needs_node)])
def outcomes(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[dict[str, bytes]], dict[str, Outcome]]:
    """What a reader makes of logs, {name: outcome}. Why it refuses one is a line, which may list many names."""

    def found(logs: dict[str, bytes]) -> dict[str, Outcome]:
        paths = [tmp_path / f"{n}.dcl" for n in range(len(logs))]
        for path, content in zip(paths, logs.values(), strict=True):
            path.write_bytes(content)
        if request.param == "js":
            made = [tuple(each) for each in json.loads(run_js(OUTCOMES, *map(str, paths)))]
        elif request.param == "c":
            program = request.getfixturevalue("watched_program")
            made = [by_c(program, path) for path in paths]
        else:
            made = [by_python(path) for path in paths]
        assert [
            said for kind, said in made if kind == "refused" and (not said or "\n" in said or len(said) > 2000)
        ] == []
        return dict(zip(logs, made, strict=True))

    return found


Outcomes = Callable[[dict[str, bytes]], dict[str, Outcome]]


def test_every_reader_refuses_a_hostile_log_for_the_same_reason(outcomes: Outcomes, vectors: Path) -> None:
    table = list(hostile((vectors / "run.dcl").read_bytes()))
    found = outcomes({what: content for what, _, content in table})
    other = {what: (reason, *found[what]) for what, reason, _ in table if found[what][0] != "refused"}
    other |= {what: (reason, *found[what]) for what, reason, _ in table if not re.search(reason, found[what][1])}
    assert other == {}


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
        "longer than planned": chained(json.dumps(changed(header, "config.rounds", 3)).encode(), bodies),
        "of another x_0": chained(json.dumps(changed(header, "x0", "0" * 32)).encode(), bodies),
        "of another model": chained(text, other),
    }


def test_every_reader_closes_with_the_sentence_of_replay(outcomes: Outcomes, vectors: Path, tmp_path: Path) -> None:
    logs = unfinished((vectors / "run.dcl").read_bytes())
    found = outcomes(logs)
    for what, content in logs.items():
        (tmp_path / "run.dcl").write_bytes(content)
        assert found[what] == by_python(tmp_path / "run.dcl"), what
    assert "so they are not checked; the log ends before the 8 rounds" in found["without the last entry"][1]


ODD = (None, True, -1, 0, 1.5, 2**53, 2**64, 1e308, "", "toString", "9" * 20, [], [[]], {}, {"toString": 1}, "x" * 5000)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value of a header."""
    yield way
    for key, own in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(own, (*way, key))


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
            way = draw.choice([each for each in places(header) if each])
            place = header
            for step in way[:-1]:
                place = place[step]
            place[way[-1]] = draw.choice(ODD)
            text = json.dumps(header).encode()
        case 2:
            bodies = [*bodies[:r], hit(bodies[r]), *bodies[r + 1 :]]
        case 3:
            bodies = [*bodies[:r], with_record(bodies[r], hit), *bodies[r + 1 :]]
        case _:
            return hit(chained(text, bodies))
    return chained(text, bodies)


def mutations(content: bytes, count: int) -> dict[str, bytes]:
    draw, parts = random.Random(1), parted(content)
    return {str(n): mutated(draw, *parts) for n in range(count)}


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["run", "run-pool"])
def test_no_mutation_of_a_log_ends_a_reader_otherwise(outcomes: Outcomes, vectors: Path, name: str, count: int) -> None:
    found = outcomes(mutations((vectors / f"{name}.dcl").read_bytes(), count))
    assert {what: own for what, own in found.items() if own[0] not in ("refused", "rebuilt")} == {}
    assert sum(kind == "refused" for kind, _ in found.values()) > count / 2


def test_the_log_that_the_hostile_ones_are_made_of_is_itself_made_again(vectors: Path) -> None:
    content = (vectors / "run.dcl").read_bytes()
    assert chained(*parted(content)) == content


@needs_gcc
def test_c_makes_the_directions_of_the_vectors(c_program: Path, vectors: Path) -> None:
    for own in json.loads((vectors / "stream.json").read_text())["directions"]:
        if own["distribution"] in KINDS:
            kind = str(KINDS.index(own["distribution"]))
            words = [c_program, "--direction", kind, own["key"], str(own["p"]), str(own["d"])]
            assert (
                subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == own["bits"].split()
            )


CHECKS = """
const at = (name) => JSON.parse(readFileSync(`${process.argv[1]}/${name}.json`, "utf8"));
const bytes = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const word = (n) => n.toString(16).padStart(8, "0");
const bits = (v) => Array.from(new Uint32Array(v.buffer, v.byteOffset, v.length), word);
const seed = (hex) => BigInt(`0x${hex}`), wrong = [];
const same = (what, found, wanted) => found === wanted || wrong.push(what);
for (const { message, check } of at("checks").crc32) same("crc32", decomfl.crc32(bytes(message)), parseInt(check, 16));
for (const { message, hash } of at("checks").blake2b_128) {
  same(`blake2b ${message.length / 2}`, decomfl.hex(decomfl.blake2b(bytes(message), 16)), hash);
}
for (const { seed: own, path, below } of at("checks").seeds) {
  same(`seed ${path}`, decomfl.derive(seed(own), ...path.map(seed)), seed(below));
}
for (const { distribution, key, p, d, bits: wanted } of at("stream").directions) {
  if (distribution === "low-rank") continue;
  const make = decomfl.direction(distribution, seed(key), p, d), z = new Float32Array(256);
  for (const tile of [0, 1]) make(z.subarray(128 * tile, 128 * (tile + 1)), tile);
  same(`${distribution} ${key}`, bits(z).slice(0, d).join(" "), wanted);
}
for (const { tensor, key, elements, bits: wanted, ...own } of at("starts")) {
  const before = { shape: [0], draw: "constant", scale: 0 };
  const tensors = [...Array(tensor).fill(before), { shape: [elements], ...own }];
  const x = decomfl.startOf({ d: elements, start: { by: "stream", key, tensors } });
  same(`start ${own.draw} ${tensor}`, bits(x).join(" "), wanted);
}
console.log(JSON.stringify(wrong));
"""


@needs_node
def test_javascript_agrees_with_the_vectors_of_stream_starts_and_hashes(vectors: Path) -> None:
    assert json.loads(run_js(CHECKS, str(vectors))) == []


@needs_node
def test_a_wrong_bit_in_a_vector_is_noticed(vectors: Path, tmp_path: Path) -> None:
    for name in ("stream", "starts", "checks"):
        (tmp_path / f"{name}.json").write_text((vectors / f"{name}.json").read_text())
    table = json.loads((tmp_path / "stream.json").read_text())
    table["directions"][0]["bits"] = table["directions"][0]["bits"].replace("bfa16c47", "bfa16c46")
    (tmp_path / "stream.json").write_text(json.dumps(table))
    assert json.loads(run_js(CHECKS, str(tmp_path))) == ["gaussian 0000000000000000"]


@needs_gcc
def test_a_fused_multiply_add_is_noticed(vectors: Path, tmp_path: Path) -> None:
    if "fma" not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("the processor has no fused multiply-add")
    program = compiled(tmp_path, "-ffp-contract=fast", "-mfma")
    ran = subprocess.run([program, vectors / "run.dcl"], capture_output=True, text=True, check=False)
    assert (ran.returncode, "DIFFERS" in ran.stdout) == (1, True)


def test_each_reader_is_a_file_of_less_than_500_lines() -> None:
    for path in (MAIN.with_suffix(".js"), ROOT / "examples" / "c" / "decomfl.h"):
        assert len(path.read_text().splitlines()) < 500
