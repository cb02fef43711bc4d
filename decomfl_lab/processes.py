"""Processes that work while this one shows how far they are, tells them to stop, and takes what they bring.

What lies in the current folder is no library of a Python that is started from here. ``python -m`` and ``python -c``
have that folder first on their path, so that a file ``re.py`` there is run in place of Python's own. A user's modules
are found there all the same, after all others (``plugins.named``).
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import Any, Final, Self

import joblib

from decomfl_lab.errors import InputError
from decomfl_lab.interrupts import Interrupted

_SAFE: Final = "PYTHONSAFEPATH"
POLL_SECONDS: Final = 0.5  # how often the others tell something; this process takes it, and looks around, at once
Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]
"""A name, a function of a module, and its arguments."""

_tell: Callable[[Any], None] = print  # what ``tell`` does in this process


def tell(what: Any) -> None:
    """Tell the process that asked for this work something; Interrupted where the work is to stop."""
    _tell(what)


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that is started here: that of this one, with changes."""
    return {**os.environ, _SAFE: "1", **(changes or {})}


@contextmanager
def safely() -> Iterator[None]:
    """Let libraries that start processes by themselves start them in ``environment()``."""
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before


class Processes:
    """Processes that are started when they are needed; where there is one, it is this one.

    A terminal's Ctrl-C, which goes to all, is left to this one. They end when it does, in whatever way.
    """

    def __init__(self, n_jobs: int) -> None:
        """``n_jobs`` is how many there are, -1 for one a CPU."""
        self.count = joblib.effective_n_jobs(n_jobs)
        self._stop: Any = Event()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(safely())
        if self.count > 1:
            context = multiprocessing.get_context("spawn")  # one that is forked would have this one's threads half
            self._told, self._stop = context.SimpleQueue(), context.Event()
            self._pool = ProcessPoolExecutor(self.count, context, _begin, (self._told, self._stop))
        return self

    def __exit__(self, *_: object) -> None:
        if self.count > 1:
            for process in list((self._pool._processes or {}).values()):
                process.kill()  # it is idle, or what it has saved is whole
            self._pool.shutdown()
        self._open.close()

    @property
    def stopped(self) -> bool:
        """Whether they were told to stop."""
        return bool(self._stop.is_set())

    def stop(self) -> None:
        """Let what is under way be saved, and begin nothing more."""
        self._stop.set()

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
            ahead: Whether there is one call more for each process than it is at, so that none is idle while this one
                is busy.

        Raises:
            InputError: If a process was killed; and what a call raises.
        """
        global _tell
        if self.count == 1:  # this process does the work

            def hear(what: Any) -> None:
                heard(what)
                look()
                if self.stopped:
                    raise Interrupted

            _tell = hear
            look()
            while (call := calls()) is not None:
                name, function, arguments = call
                yield name, function(*arguments)
                look()
            return
        names: dict[Future[Any], Any] = {}  # of the calls that they have
        while True:
            look()
            try:
                while len(names) < self.count * (2 if ahead else 1) and (call := calls()) is not None:
                    name, function, arguments = call
                    names[self._pool.submit(function, *arguments)] = name
                done = wait(names, POLL_SECONDS / 10, FIRST_COMPLETED).done
                while not self._told.empty():
                    heard(self._told.get())
                for future in done:
                    yield names.pop(future), future.result()
            except BrokenExecutor:
                rule = "not be killed from outside (too little memory?)"
                raise InputError(f"processes must {rule}, got one that was; --jobs 1 needs least") from None
            if not done and not names:
                return


def _begin(told: Any, stop: Any) -> None:
    """Be one of the processes: what is told goes to the one that started them, and none outlives it."""
    global _tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def outlived() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    def hear(what: Any) -> None:
        told.put(what)
        if stop.is_set():
            raise Interrupted

    Thread(target=outlived, daemon=True).start()
    _tell = hear
