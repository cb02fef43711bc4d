"""Processes that work while this one shows how far they are, tells them to stop, and takes what they bring."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any, Final

import joblib

from decomfl_lab.children import safely
from decomfl_lab.errors import InputError
from decomfl_lab.interrupts import Interrupted

__all__ = ["POLL_SECONDS", "Call", "Processes", "tell"]

POLL_SECONDS: Final = 0.5  # how often this process takes what the others tell, and looks around
Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""A name, a function of a module, and its arguments."""

# In each process: what it tells goes here, and when this is set it is to save what it has.
_told: Callable[[Any], None] = print
_stop: Any = threading.Event()


def tell(what: Any) -> None:
    """Tell the process that asked for this work something; Interrupted where the work is to stop."""
    _told(what)
    if _stop.is_set():
        raise Interrupted


class Processes:
    """Processes that are started when they are needed; where there is one, it is this one.

    A terminal's Ctrl-C, which goes to all, is left to this one. They end when it is killed.
    """

    def __init__(self, n_jobs: int) -> None:
        """``n_jobs`` is how many there are, -1 for one a CPU."""
        self.count = joblib.effective_n_jobs(n_jobs)
        # A process that is forked would have this one's threads half.
        context = multiprocessing.get_context("spawn")
        self._stop, self._told = context.Event(), context.SimpleQueue()
        self._executor = ProcessPoolExecutor(self.count, context, _begin, (self._stop, self._told))
        self._open = ExitStack()

    def __enter__(self) -> Processes:
        self._open.enter_context(safely())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for child in multiprocessing.active_children():
                child.kill()  # what it has saved is whole
        self._executor.shutdown(wait=kind is None, cancel_futures=True)
        self._open.close()

    def stop(self) -> None:
        """Let what is under way be saved, and begin nothing more."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether they were told to stop."""
        return bool(self._stop.is_set())

    def results(
        self,
        calls: Callable[[], Call | None],
        heard: Callable[[Any], None] = lambda _: None,
        look: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Any, Any]]:
        """The name and the result of each call, as they come.

        Args:
            calls: The next call, None while there is none; asked again after every result.
            heard: Called with what processes ``tell``.
            look: Called now and then meanwhile.

        Raises:
            InputError: If a process was killed; and what a call raises.
        """
        global _told, _stop

        def hear(what: Any) -> None:
            heard(what)
            look()

        if self.count == 1:
            _told, _stop = hear, self._stop
            look()
            while (call := calls()) is not None:
                name, function, given = call
                yield name, function(*given)
                look()
            return
        running: dict[Future[Any], Any] = {}
        while True:
            # One more than there are processes, so that none is idle while a result is looked at.
            while len(running) <= self.count and (call := calls()) is not None:
                name, function, given = call
                running[self._executor.submit(function, *given)] = name
            if not running:
                return
            done, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
            while not self._told.empty():
                heard(self._told.get())
            look()
            for future in done:
                try:
                    yield running.pop(future), future.result()
                except BrokenProcessPool:
                    rule = "not be killed from outside (too little memory?)"
                    raise InputError(f"processes must {rule}, got one that was; --jobs 1 needs least") from None


def _begin(stop: Any, told: Any) -> None:
    """What a process does first."""
    global _told, _stop
    _told, _stop = told.put, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
