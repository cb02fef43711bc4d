"""NVFlare's and Flower's carriers over stand-ins of their engines: who is away costs nothing, and bytes are counted."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.decomfl_lab.carriers import stand_ins
from tests.decomfl_lab.carriers.stand_ins import CollabCallError, standing_in
from tests.decomfl_lab.federations.direct import CASE, counted, host, remote

FLOWER = str(Path(__file__).parents[3] / "examples" / "flower")


class Site:
    """A site of NVFlare's, or a node of Flower's, with its host; it counts what goes and comes."""

    def __init__(self, i, seen):
        self.name, self.i, self.seen, self.own, self.fails = f"site-{i}", i, seen, host(CASE, i), False

    def __call__(self, timeout):
        assert timeout > 0
        return self

    def handle(self, frame):
        self.seen[self.i, False] += len(frame)
        if self.fails:
            raise CollabCallError("x\x1b[2K\nFORGED")
        answer = self.own.handle({self.i: frame})[self.i]
        self.seen[self.i, True] += len(answer)
        return answer


@pytest.fixture
def sites():
    seen = Counter()
    return [Site(i, seen) for i in range(4)]


@pytest.fixture
def nvflare(sites):
    """Sites of a job, of which number 3 was not connected when it began."""
    with standing_in("decomfl_lab.carriers.nvflare", stand_ins.nvflare(sites[:3])) as module:
        yield module.Sites([site.name for site in sites])


class Grid:
    """Flower's grid; nodes have the numbers 100, 101, ..."""

    def __init__(self, sites):
        self.sites, self.away = sites, set()

    def get_node_ids(self):
        return [100 + site.i for site in self.sites if site.i not in self.away]

    def send_and_receive(self, messages, timeout):
        for message in messages:
            answer = self.sites[message.node - 100].handle(message.content)
            source = SimpleNamespace(src_node_id=message.node)
            yield SimpleNamespace(has_error=lambda: False, content=answer, metadata=source)


@pytest.fixture
def grid(sites):
    return Grid(sites)


@pytest.fixture
def flower(grid, sites, monkeypatch):
    """Nodes of Flower's, of which that of client 3 goes once all have been met."""
    monkeypatch.syspath_prepend(FLOWER)

    def message(content, dst_node_id, message_type):
        return SimpleNamespace(node=dst_node_id, content=content)

    parts = {
        "flwr": {},
        "flwr.app": {"Context": object, "Message": message},
        "flwr.serverapp": {"Grid": object, "ServerApp": lambda: SimpleNamespace(main=lambda: lambda own: own)},
        "decomfl_flower.shared": {"content_of": bytes, "frame_of": bytes, "run_of": None},
    }
    with standing_in("decomfl_flower.server_app", parts) as module:
        carrier = module.Nodes(grid, 4)
        grid.away = {3}
        sites[0].seen.clear()  # which client a node is is asked before the session begins
        yield carrier


ENGINES = pytest.mark.parametrize("engine", ["nvflare", "flower"])


@ENGINES
def test_who_is_away_costs_nothing_and_the_ledgers_have_the_bytes_that_went(engine, request, sites):
    carrier = request.getfixturevalue(engine)
    elsewhere = remote(m=4, quorum=2, carrier=carrier, deadline=5.0)
    for _ in range(4):
        elsewhere.advance()
    assert set(elsewhere.rebuilt()) == {0, 1, 2}
    assert counted(elsewhere) == sites[0].seen
    assert elsewhere.ledger.down[3].bytes == 0
    assert {tuple(entry.sampled) for entry in elsewhere.log.entries()} == {(0, 1, 2)}


def test_a_frame_that_is_made_for_who_is_away_is_noticed(flower, sites):
    elsewhere = remote(m=4, quorum=2, carrier=flower, deadline=5.0)
    dict(elsewhere.coordinator.open((0, 1, 2, 3)))
    elsewhere.advance()
    assert counted(elsewhere) != sites[0].seen


def test_a_site_that_fails_is_asked_again_and_counted_each_time_in_quoted_words(nvflare, sites, caplog):
    elsewhere = remote(m=4, quorum=2, carrier=nvflare, deadline=1.0)
    sites[1].fails = True
    for _ in range(3):
        elsewhere.advance()
    assert counted(elsewhere) == sites[0].seen
    assert all(record.getMessage().isprintable() for record in caplog.records)
    sites[1].fails = False
    elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [0, 1, 2]
    assert len({elsewhere.observer.digest(), *elsewhere.rebuilt().values()}) == 1


def test_a_node_that_comes_back_is_told_what_it_missed(flower, grid):
    elsewhere = remote(m=4, quorum=2, carrier=flower, deadline=5.0)
    for away in ({3}, {3}, {0, 3}, set()):
        grid.away = away
        elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [0, 1, 2, 3]
    assert counted(elsewhere) == grid.sites[0].seen
    assert len({elsewhere.observer.digest(), *elsewhere.rebuilt().values()}) == 1
