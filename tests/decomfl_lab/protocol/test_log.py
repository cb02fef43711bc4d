"""The write-ahead log of a run: what a killed writer leaves is a prefix, and no changed bit is ever read."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.log import ArchivedHistory, LogEntry, RunLog
from decomfl_lab.records.record import History, RoundRecord
from decomfl_lab.records.seeds import Seeding, draw_seeds
from decomfl_lab.storage.files import HeldError
from tests.decomfl_lab.test_files import holder

HEADER = {"run_seed": 2**64 - 1, "config": {"data": "é", "lr": 0.1}}
ROUNDS = 4


def _entry(r: int, *, K: int = 2, P: int = 3, scalar: float | None = None) -> LogEntry:
    """The entries of a run differ in all that an entry can have."""
    seeds = draw_seeds(tuple(Seeding)[r % 4], HEADER["run_seed"], r, K, P)  # type: ignore[arg-type]
    scalars = np.arange(K * P, dtype=np.float32).reshape(K, P) - r if scalar is None else np.full((K, P), scalar, "f4")
    record = RoundRecord(r, 0.5 / (r + 1), tuple(Distribution)[r % 3], seeds, scalars)
    held, digest = (r, 0) if r % 2 else None, f"{r:032x}" if r % 3 == 0 else None
    return LogEntry(record, (5, r), (5,), held, digest, (2**29 - 1,) if r in (1, 2) else None)


def _written(path: Path, rounds: int = ROUNDS) -> RunLog:
    log = RunLog.create(path, HEADER)
    for r in range(rounds):
        log.append(_entry(r), sync=r == 0)
    return log


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, list[int]]:
    """A file, its bytes, and where each entry begins; the last number is the end."""
    path = tmp_path_factory.mktemp("log") / "run.dcl"
    with _written(path) as log:
        return path, path.read_bytes(), list(log.starts)


def _opened(content: tuple[Path, bytes, list[int]], changed: bytes) -> RunLog:
    path = content[0].with_name("changed")
    path.write_bytes(changed)
    return RunLog.open(path)


def _read(content: tuple[Path, bytes, list[int]], changed: bytes) -> list[LogEntry]:
    with _opened(content, changed) as log:
        return list(log.entries())


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    with _written(tmp_path / "run.dcl") as log:
        chain = log.chain
    with RunLog.open(tmp_path / "run.dcl") as log:
        assert (len(log), log.header, log.chain) == (ROUNDS, HEADER, chain)
        assert [log.entry(r) for r in range(ROUNDS)] == list(log.entries()) == [_entry(r) for r in range(ROUNDS)]
        assert log.records(1, 3) == (_entry(1).record, _entry(2).record)
        assert log.records(ROUNDS) == ()


@given(st.data())
def test_a_file_that_ends_too_early_has_the_entries_before(
    content: tuple[Path, bytes, list[int]], data: st.DataObject
) -> None:
    _, whole, starts = content
    kept = data.draw(st.integers(0, len(whole)) | st.sampled_from(starts))
    zeros = (
        data.draw(st.integers(0, len(whole) - kept)) if kept in starts else 0
    )  # space that was given and not written
    if kept < starts[0]:
        with pytest.raises(InputError, match="log must begin with|header was changed or cut"):
            _read(content, whole[:kept])
        return
    with _opened(content, whole[:kept] + bytes(zeros)) as log:
        there = sum(start <= kept for start in starts) - 1
        assert list(log.entries()) == [_entry(r) for r in range(there)]
        for r in range(there, ROUNDS):
            log.append(_entry(r))
    assert content[0].with_name("changed").read_bytes() == whole


def test_the_warning_of_a_cut_names_file_bytes_and_round(
    content: tuple[Path, bytes, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    _, whole, starts = content
    with caplog.at_level(logging.WARNING), _opened(content, whole[: starts[2] + 20]):
        assert caplog.messages == [f"{content[0].with_name('changed')} ends in 20 bytes of round 2, which was not "
                                   "written whole; they are cut"]  # fmt: skip
    assert content[0].with_name("changed").stat().st_size == starts[2]


def test_whoever_only_reads_leaves_a_torn_file_as_it_is(content: tuple[Path, bytes, list[int]]) -> None:
    torn = content[0].with_name("torn")
    torn.write_bytes(content[1][:-1])
    with RunLog.open(torn, write=False) as log:
        assert len(log) == ROUNDS - 1
        with pytest.raises(InputError, match=r"cannot write .*torn: File not open for writing"):
            log.append(_entry(ROUNDS - 1))
    assert torn.read_bytes() == content[1][:-1]


def test_entries_of_another_run_do_not_follow_this_header(
    tmp_path: Path, content: tuple[Path, bytes, list[int]]
) -> None:
    RunLog.create(tmp_path / "other", HEADER | {"config": {}}).close()
    other = (tmp_path / "other").read_bytes()
    with pytest.raises(InputError, match="entry of round 0 was changed or moved"):
        _read(content, other + content[1][content[2][0] :])


def test_a_log_that_is_cut_goes_on_as_if_nothing_had_followed(content: tuple[Path, bytes, list[int]]) -> None:
    path = content[0].with_name("cut")
    path.write_bytes(content[1] + b"damage")  # nobody reads what is cut
    with RunLog.open(path, end=2) as log:
        assert path.stat().st_size == content[2][2]
        assert [entry.record.round for entry in log.entries()] == [0, 1]
        for r in (2, 3):
            log.append(_entry(r))
    assert path.read_bytes() == content[1]


def test_rounds_that_are_not_there_are_refused() -> None:
    with RunLog.create(None, HEADER) as log:
        assert log.name == "a nameless log"
        log.append(_entry(0))
        for wrong in (lambda: log.append(_entry(2)), lambda: log.entry(1), lambda: log.records(0, 2)):
            with pytest.raises(InputError, match=r"must be (1|in 0\.\.[01]), got"):
                wrong()


def test_what_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log must be a file that can be read, got .*nowhere \(No such file"):
        RunLog.open(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no log, but long enough to be one")
    with pytest.raises(InputError, match=r"log must begin with .*text, got b'no log, '"):
        RunLog.open(tmp_path / "text")
    with pytest.raises(InputError, match="run_seed in the header of a log must be an integer in .*, got None"):
        RunLog.create(tmp_path / "a", {"a": 1})


def test_a_digest_is_written_over_its_entry(tmp_path: Path) -> None:
    path, digest = tmp_path / "run.dcl", 32 * "a"
    with _written(path, 2) as log:
        size = path.stat().st_size
        log.sign(digest)
        assert (log.entry(1).digest, log.entry(1).record, path.stat().st_size) == (digest, _entry(1).record, size)
        log.append(_entry(2))
    with RunLog.open(path) as log:
        assert [entry.digest for entry in log.entries()] == [_entry(0).digest, digest, None]


@pytest.mark.parametrize("write", [True, False])
def test_a_digest_that_was_not_written_whole_is_mended(tmp_path: Path, write: bool) -> None:
    path, digest = tmp_path / "run.dcl", 32 * "a"
    with _written(path, 2) as log:
        before = path.read_bytes()
        log.sign(digest)
    after = path.read_bytes()
    changed = [n for n, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) == 2]
    for end in range(changed[0] + 1, changed[-1] + 1):
        path.write_bytes(after[:end] + before[end:])
        with RunLog.open(path, write=write) as log:
            _, last = log.entries()
        assert last.digest in (None, digest)
        assert last.record == _entry(1).record
        assert (path.read_bytes() in (before, after)) is write  # who only reads leaves the file as it is


def test_a_log_that_another_process_writes_to_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.dcl"
    _written(path, 2).close()
    before = path.read_bytes()
    with holder("log", path) as process:
        for write in (lambda: RunLog.create(path, HEADER), lambda: RunLog.open(path), lambda: RunLog.open(path, end=1)):
            with pytest.raises(HeldError, match=f"log must be a file .*, held by process {process.pid} on"):
                write()
        with RunLog.open(path, write=False) as log:
            assert len(log) == 2
        process.kill()
        process.wait()
        assert path.read_bytes() == before
        with RunLog.open(path) as log:  # a lock does not outlive its holder
            log.append(_entry(2))
    assert [each.name for each in tmp_path.iterdir()] == ["run.dcl"]


def _more(path: Path) -> None:
    with RunLog.open(path) as other:
        other.append(_entry(2))


def _others(path: Path) -> None:
    with RunLog.open(path, end=1) as other:
        other.append(_entry(1, scalar=1.0))  # as many bytes


def _another_file(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.mark.parametrize("change", [_more, _others, _another_file, Path.unlink])
def test_nothing_is_written_to_a_log_that_somebody_else_has_written_to(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "run.dcl"
    with _written(path, 2) as log:
        change(path)
        after = path.read_bytes() if path.exists() else None
        for write in (lambda: log.append(_entry(2)), lambda: log.sign(32 * "a")):
            with pytest.raises(InputError, match="be as it was left here, after 2 rounds"):
                write()
        assert (path.read_bytes() if path.exists() else None) == after


@given(st.integers(1, 5), st.lists(st.integers(0, 4), max_size=12), st.integers(0, 4))
def test_an_archived_history_has_every_record_that_a_plain_one_has(window: int, late: list[int], before: int) -> None:
    with RunLog.create(None, HEADER) as log:
        for r in range(before):
            log.append(_entry(r))
        archived, plain = ArchivedHistory(log, window), History(log.records(0))
        for lag in late:  # the log may lag behind
            entry = _entry(archived.end)
            archived.append(entry.record)
            plain.append(entry.record)
            archived.prune(archived.end)
            for r in range(len(log), archived.end - lag):
                log.append(_entry(r))
        assert (archived.start, archived.end, len(archived)) == (0, plain.end, len(plain))
        assert all(archived.since(r) == plain.since(r) for r in range(plain.end + 1))
        with pytest.raises(InputError, match="round of the appended record"):
            archived.append(_entry(archived.end + 1).record)


def test_another_header_leaves_the_entries_and_can_be_gone_on_with(tmp_path: Path) -> None:
    other = HEADER | {"config": {"data": "more"}}
    with _written(tmp_path / "run.dcl", 2) as log:
        log.rewrite(tmp_path / "run.dcl", other)
        for r in range(2, ROUNDS):
            log.append(_entry(r))
        chain = log.chain
    with RunLog.open(tmp_path / "run.dcl") as log:
        assert (log.header, log.chain) == (other, chain)
        assert list(log.entries()) == [_entry(r) for r in range(ROUNDS)]
