"""The C and the JavaScript that follow a log agree with the test vectors, and refuse what is damaged."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from decomfl_lab.runs.conformance import write_conformance
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


@pytest.fixture(params=[pytest.param("c", marks=needs_gcc), pytest.param("js", marks=needs_node)])
def reader(request: pytest.FixtureRequest) -> Reader:
    first = [str(request.getfixturevalue("c_program"))] if request.param == "c" else [str(NODE), str(MAIN)]
    return lambda log: subprocess.run([*first, str(log)], capture_output=True, text=True, check=False)


def told(folder: Path, name: str) -> list[str]:
    """The lines that a reader must print of a run."""
    run = json.loads((folder / f"{name}.json").read_text())
    digests = [(0, json.loads(run["header"])["x0"]), *((own["round"] + 1, own["digest"]) for own in run["rounds"])]
    return [f"{r} {digest} agrees" for r, digest in digests if digest]


def run_js(code: str, *words: str) -> str:
    program = (
        f"import {{ decomfl, rebuild }} from {json.dumps(MAIN.as_uri())}; import {{ readFileSync }} from 'node:fs';"
    )
    ran = subprocess.run(
        [str(NODE), "--input-type=module", "-e", program + code, *words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@needs_gcc
@pytest.mark.parametrize("name", C_RUNS)
def test_c_rebuilds_the_runs_of_its_rules_to_the_bit(c_program: Path, vectors: Path, name: str) -> None:
    ran = subprocess.run([c_program, vectors / f"{name}.dcl"], capture_output=True, text=True, check=False)
    assert (ran.stdout.splitlines(), ran.returncode, ran.stderr) == (told(vectors, name), 0, "")


@needs_gcc
def test_c_rebuilds_the_recorded_run_of_the_page(c_program: Path) -> None:
    ran = subprocess.run([c_program, MAIN.with_name("mnist.dcl")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 31


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
    at = 32 + struct.unpack_from("<I", content, 12)[0]
    entries, head = [], content[:at]
    while at < len(content):
        end = at + 28 + struct.unpack_from("<I", content, at + 4)[0]
        entries.append(content[at:end])
        at = end
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
    from decomfl_lab.protocol.log import RunLog

    shutil.copy(vectors / "run.dcl", tmp_path)
    with RunLog.open(tmp_path / "run.dcl") as log:
        log.rewrite(tmp_path / "run.dcl", {**log.header, "x0": "0" * 32})
    ran = reader(tmp_path / "run.dcl")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[0].endswith(f"DIFFERS from {'0' * 32}")


def test_x_0_that_is_in_no_file_is_asked_for_in_vain(reader: Reader, vectors: Path, tmp_path: Path) -> None:
    from decomfl_lab.protocol.log import RunLog

    with RunLog.open(vectors / "run.dcl", write=False) as log:
        given = {**log.header, "start": {"by": "given"}}
        packed = {**log.header, "start": {"by": "file", "dtype": "float32", "bytes": 5}}
    RunLog.create(tmp_path / "given.dcl", given).close()
    RunLog.create(tmp_path / "packed.dcl", packed, b"12345").close()
    for name in ("given.dcl", "packed.dcl"):
        ran = reader(tmp_path / name)
        assert ran.returncode == 2
        assert re.search("not drawn from the noise stream|x_0 is not in the log|packed", ran.stderr)


@pytest.mark.parametrize("key", ["0xFEEDFACECAFEBEE", "FEEDFACECAFEBEEF", "feedfacecafebee", "feedfacecafebeef0", ""])
def test_a_key_of_x_0_that_is_not_16_digits_is_refused(reader: Reader, vectors: Path, tmp_path: Path, key: str) -> None:
    from decomfl_lab.protocol.log import RunLog

    with RunLog.open(vectors / "run.dcl", write=False) as log:
        other = {**log.header, "start": {**log.header["start"], "key": key}}
    RunLog.create(tmp_path / "run.dcl", other).close()
    ran = reader(tmp_path / "run.dcl")
    assert (ran.returncode, "16 hexadecimal digits" in ran.stderr) == (2, True)


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


def test_each_reader_is_a_file_of_less_than_400_lines() -> None:
    for path in (MAIN.with_suffix(".js"), ROOT / "examples" / "c" / "decomfl.h"):
        assert len(path.read_text().splitlines()) < 400
