"""Ctrl-C and SIGTERM: where work may be stopped, and what is said of what is kept."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_idle = False
_held: list[int] = []


class Interrupted(KeyboardInterrupt):
    """A signal has ended the work; the message is one line that says what is kept of it."""

    def __init__(self, words: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(words)
        self.number = number  # the signal's number


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler of signals that does with any of them what Python does with Ctrl-C."""
    del frame
    raise Interrupted(number=number)


@contextmanager
def telling(words: Callable[[], str]) -> Iterator[None]:
    """Let an interrupt of what is done inside say ``words()``, unless it has words already."""
    try:
        yield
    except KeyboardInterrupt as error:
        if str(error):
            raise
        raise Interrupted(words(), error.number if isinstance(error, Interrupted) else signal.SIGINT) from None


@contextmanager
def postponed() -> Iterator[list[int]]:
    """Hold the first SIGINT or SIGTERM back until the end, or until the work inside finds it in the list and stops.

    A second one is not held back: who cannot wait signals twice. Nor is one that comes while the work is ``idle``.
    Signals without a handler in Python, and those of other threads than the main one, are left as they are.
    """
    global _held
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        present = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        handlers = {number: handler for number, handler in present.items() if callable(handler)}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1 or _idle:
            handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, note)
    _held = came
    try:
        yield came
    finally:
        _held = []
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        handlers[signal.Signals(came[0])](came[0], None)


@contextmanager
def idle() -> Iterator[None]:
    """Let signals through while work waits for somebody who may never come; what is under way is lost with them.

    Raises:
        Interrupted: If one was held back before.
    """
    global _idle
    if _held:
        raise Interrupted(number=_held[0])
    _idle = threading.current_thread() is threading.main_thread()
    try:
        yield
    finally:
        _idle = False
