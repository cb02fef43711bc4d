"""Processes that work while this one shows how far they are, tells them to stop, and takes what they bring."""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Self

import joblib

from decomfl_lab.children import safely
from decomfl_lab.errors import InputError
from decomfl_lab.interrupts import Interrupted

POLL_SECONDS: Final = 0.5  # how often this process takes what the others tell, and looks around
Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""A name, a function of a module, and its arguments."""
_TOLD, _DONE, _FAILED = "told", "done", "failed"  # what a process sends: something it tells, or how a call ended

_tell: Callable[[Any], None] = print  # what ``tell`` does in this process


def tell(what: Any) -> None:
    """Tell the process that asked for this work something; Interrupted where the work is to stop."""
    _tell(what)


@dataclass
class _Child:
    """Another process, and the pipe to it."""

    process: BaseProcess
    pipe: Connection
    names: deque[Any] = field(default_factory=deque)  # of the calls that it has: the one under way, and the next


class Processes:
    """Processes that are started when they are needed; where there is one, it is this one.

    A terminal's Ctrl-C, which goes to all, is left to this one. They end when it does, in whatever way.
    """

    def __init__(self, n_jobs: int) -> None:
        """``n_jobs`` is how many there are, -1 for one a CPU."""
        self.count = joblib.effective_n_jobs(n_jobs)
        self.stopped = False  # whether they were told to stop
        self._children: list[_Child] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(safely())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.process.kill()  # it is idle, or what it has saved is whole
            child.process.join()
            child.pipe.close()
        self._open.close()

    def stop(self) -> None:
        """Let what is under way be saved, and begin nothing more."""
        if not self.stopped:
            self.stopped = True
            for child in self._children:
                with suppress(OSError):  # one that was killed has stopped
                    child.pipe.send(None)

    def results(
        self,
        calls: Callable[[], Call | None],
        heard: Callable[[Any], None] = lambda _: None,
        look: Callable[[], None] = lambda: None,
        *,
        ahead: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """The name and the result of each call, as they come.

        Args:
            calls: The next call, None while there is none; asked again after every result.
            heard: Called with what processes ``tell``.
            look: Called now and then meanwhile.
            ahead: Whether each process has one call more than it is at, so that none is idle while this one is busy:
                for calls that are small, as the next one has to fit into the pipe.

        Raises:
            InputError: If a process was killed; and what a call raises.
        """
        if self.count == 1:
            yield from self._here(calls, heard, look)
            return
        while True:
            look()
            try:
                self._hand_out(calls, 2 if ahead else 1)
                busy = [child for child in self._children if child.names]
                if not busy:
                    return
                wait([child.pipe for child in busy], POLL_SECONDS)
                came = [(child, *child.pipe.recv()) for child in busy if child.pipe.poll()]
            except (EOFError, OSError):
                rule = "not be killed from outside (too little memory?)"
                raise InputError(f"processes must {rule}, got one that was; --jobs 1 needs least") from None
            for child, what, found in came:
                if what == _FAILED:
                    raise found
                if what == _TOLD:
                    heard(found)
                else:
                    yield child.names.popleft(), found

    def _here(
        self, calls: Callable[[], Call | None], heard: Callable[[Any], None], look: Callable[[], None]
    ) -> Iterator[tuple[Any, Any]]:
        global _tell

        def hear(what: Any) -> None:
            heard(what)
            look()
            if self.stopped:
                raise Interrupted

        _tell = hear
        look()
        while (call := calls()) is not None:
            name, function, given = call
            yield name, function(*given)
            look()

    def _hand_out(self, calls: Callable[[], Call | None], most: int) -> None:
        """Give calls to the processes, first one to each, until each has so many."""
        for wanted in range(1, most + 1):
            for n in range(self.count):
                if n < len(self._children) and len(self._children[n].names) >= wanted:
                    continue
                if (call := calls()) is None:
                    return
                if n == len(self._children):
                    # A process that is forked would have this one's threads half.
                    context = multiprocessing.get_context("spawn")
                    here, there = context.Pipe()
                    process = context.Process(target=_serve, args=(there,))
                    process.start()
                    there.close()  # so that this process is told when that one ends
                    self._children.append(_Child(process, here))
                name, function, given = call
                self._children[n].names.append(name)
                self._children[n].pipe.send((function, given))


def _serve(pipe: Connection) -> None:
    """Do the calls that come through the pipe, until it is closed."""
    global _tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
    stopping = False

    def take() -> None:
        nonlocal stopping
        message = pipe.recv()
        if message is None:
            stopping = True
        else:
            waiting.append(message)

    def told(what: Any) -> None:
        try:
            pipe.send((_TOLD, what))
            while pipe.poll():
                take()
        except (EOFError, OSError):
            os._exit(1)  # who asked for the work is gone
        if stopping:
            raise Interrupted

    _tell = told
    with suppress(EOFError, OSError):
        while True:
            while not waiting:
                take()
            function, given = waiting.popleft()
            try:
                found = _DONE, function(*given)
            except Exception as error:
                if not isinstance(error, InputError):
                    error.add_note(traceback.format_exc())
                found = _FAILED, error
            pipe.send(found)
