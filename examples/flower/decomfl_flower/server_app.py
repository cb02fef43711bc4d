"""The server: a carrier of frames over Flower's grid."""

import json
import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from decomfl_flower.shared import content_of, frame_of, run_of
from decomfl_lab.errors import quoted
from decomfl_lab.federations.carrier import Take
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.protocol.messages import Ask, Hello
from decomfl_lab.protocol.session import Frames
from decomfl_lab.protocol.wire import decode, encode, split_frame

app = ServerApp()


class Nodes:
    """Flower's nodes, each a client, which it says when it is asked: a ``Carrier``."""

    def __init__(self, grid: Grid, M: int) -> None:
        """Wait for M nodes that are different clients."""
        self._grid = grid
        self._clients: dict[int, int | None] = {}  # {node: client}
        while len(set(self._clients.values()) - {None}) < M:
            self._meet()
            time.sleep(1.0)

    def _meet(self) -> None:
        """Ask new nodes which client they are; one that was started again is a new node."""
        new = [node for node in self._grid.get_node_ids() if node not in self._clients]
        for node, answer in self._answers(dict.fromkeys(new, encode(Ask())), None).items():
            said = decode(split_frame(answer)[0])
            self._clients[node] = said.client if isinstance(said, Hello) else None

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``; the answers of one time are waited for together, as Flower is asked for them."""
        end = math.inf if deadline is None else time.monotonic() + deadline
        self._meet()
        there = set(self._grid.get_node_ids())
        nodes = {i: node for node, i in self._clients.items() if i is not None and node in there}
        asked = {i: frames[i] for i in frames if i in nodes}
        heard = False
        while asked and (left := end - time.monotonic()) > 0:
            sent = {nodes[i]: frame for i, frame in asked.items()}
            answers = self._answers(sent, None if left == math.inf else left)
            more = {i: take(i, answers[nodes[i]], math.nan) for i in asked if nodes[i] in answers}
            asked = {i: frame for i, frame in more.items() if frame}
            heard = heard or bool(answers)
        if not heard:  # the round may ask again; not at once
            time.sleep(min(1.0, max(0.0, end - time.monotonic())))

    def _answers(self, frames: Mapping[int, bytes], timeout: float | None) -> dict[int, bytes]:
        """{node: frame} of the nodes that answered."""
        asked = [Message(content_of(frame), dst_node_id=node, message_type="query") for node, frame in frames.items()]
        answers = {}
        for answer in self._grid.send_and_receive(asked, timeout=timeout):
            if answer.has_error():
                logging.warning("node %d: %s", answer.metadata.src_node_id, quoted(str(answer.error)))
            else:
                answers[answer.metadata.src_node_id] = frame_of(answer.content)
        return answers

    def close(self) -> None:
        """See ``Carrier``; the nodes stay for further runs."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The run, kept in a folder with the digests of all models after the last round."""
    run, federation, identity = run_of(context)
    carrier = Nodes(grid, run.config.clients)
    elsewhere = RemoteFederation.of(federation, carrier, identity, patience=3600.0, check_every=0)
    run.federation = elsewhere
    out = Path(str(context.run_config["out"]))
    run.train(out=out)
    digests = {f"client {i}": digest for i, digest in elsewhere.rebuilt().items()}
    (out / "digests.json").write_text(json.dumps({"server": elsewhere.observer.digest(), **digests}, indent=1))
