"""The drawn search: histories of seeds, and the shortest like one that ends wrongly.

A history that breaks a rule is made shorter, decision by decision, as long as it still breaks one.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.worlds import histories
from decomfl_lab.laws.worlds.world import SETTINGS, SmallFederation, Tell, World, silenced

ALIKE = 12
"""The first letters of what is wrong, which say of what kind it is."""
TRIES = 100
"""Seeds that are tried to find what is wrong in a simpler federation."""
_OFTEN, _SELDOM = (0.0, 0.05, 0.2, 0.5), (0.0, 0.01, 0.03, 0.1)
RATES: dict[str, tuple[float, ...]] = {"frame": _SELDOM, "client": _SELDOM, "server": (0.0, 0.005, 0.02, 0.08)}
RATES |= dict.fromkeys(("again", "absence", "greeting", "disk", "checkpoint"), _OFTEN)
RATES |= {
    "silence": (0.0, 0.5, 0.9),
    "full": (0.0, 0.0, 0.0, 0.1),
    "rot": (0.0, 0.0, 0.0, 0.05),
    "stranger": (*[0.0] * 15, 1.0),
}
"""How often a thing happens where it can: a history draws one of these for each kind."""


class Decisions:
    """Numbers drawn where something may happen, kind by kind; 0 is that nothing does."""

    def __init__(self, seed: int | None = None, given: Mapping[str, Sequence[int]] | None = None) -> None:
        """A history's numbers.

        Args:
            seed: Draws the numbers of kinds that are not given; None gives zeros.
            given: {kind: its numbers in order, after which come zeros}: a history made short.
        """
        self.taken: dict[str, list[int]] = {kind: [] for kind in ("setting", *RATES)}  # the numbers so far
        self._given = given or {}
        self._random = None if seed is None else random.Random(seed)
        self._rates: dict[str, float] = {}

    def __call__(self, kind: str, count: int, world: World | None = None) -> int:  # noqa: ARG002
        """A number below ``count``; in a history of a seed some kinds of faults are frequent, rare or never there.

        ``world`` is for the search breadth first, which asks it what its state is.
        """
        taken, given = self.taken[kind], self._given.get(kind)
        if given is not None or self._random is None:
            number = min(given[len(taken)], count - 1) if given is not None and len(taken) < len(given) else 0
        elif kind == "setting":  # of the federation: all are as likely
            number = self._random.randrange(count)
        else:
            if kind not in self._rates:
                self._rates[kind] = self._random.choice(RATES[kind])
            number = self._random.randrange(1, count) if self._random.random() < self._rates[kind] else 0
        taken.append(number)
        return number


def _weight(decisions: Mapping[str, Sequence[int]]) -> tuple[Any, ...]:
    """Of two histories the one of less weight is simpler."""
    flat = [number for numbers in decisions.values() for number in numbers]
    return sum(map(bool, flat)), len(flat), flat


@dataclass(frozen=True)
class Found:
    """A history that breaks a rule, as short as it could be made."""

    seed: int  # of the history in which it was found
    broken: str  # what is wrong
    decisions: dict[str, tuple[int, ...]]  # of the short history, of each kind
    events: tuple[str, ...]  # what happens in it

    def __str__(self) -> str:
        again = f"again: decomfl verify --histories 1 --seed {self.seed}"
        return "\n".join([*self.events, f"BROKEN  {self.broken}", again])


class Search:
    """Histories of one implementation, drawn by seeds."""

    def __init__(self, implementation: Implementation | None = None) -> None:
        """With the clients of ``Stand`` for None; NotImplementedError where servers or clients are not the lab's."""
        self.parts = histories.parts_of(implementation)

    def search(self, seeds: Iterable[int]) -> Found | None:
        """The first of these histories that breaks a rule, made short; None if none does."""
        with silenced():
            for seed in seeds:
                choose = Decisions(seed)
                if broken := self.broken(choose)[:ALIKE]:
                    break
            else:
                return None
            # A simple federation in which the like is wrong; then have less happen for as long as it is.
            best: Mapping[str, Sequence[int]] = choose.taken
            simplest = [*best["setting"]]
            for place in range(len(SETTINGS)):
                for n in range(simplest[place]):
                    simpler = [*simplest[:place], n, *simplest[place + 1 :]]
                    if (shorter := next(self._alike(simpler, TRIES, broken), None)) is not None:
                        best, simplest = shorter, simpler
                        break
            best = min([best, *self._alike(simplest, 8 * TRIES, broken)], key=_weight)
            for kind in [*RATES, *RATES]:  # what happens less of one kind may be of use to another
                best = self._shorter(best, kind, broken)
            events: list[str] = []
            wrong = self.broken(Decisions(given=best), events.append)
        return Found(seed, wrong, {kind: tuple(numbers) for kind, numbers in best.items()}, tuple(events))

    def broken(self, choose: Decisions, tell: Tell = None) -> str:
        """What is wrong with the history of these decisions; empty if nothing is."""
        return histories.broken(self.parts, SmallFederation.drawn(choose), choose, tell)

    def _alike(self, setting: Sequence[int], count: int, broken: str) -> Iterator[Mapping[str, Sequence[int]]]:
        """Histories of this setting, of this number of seeds, in which the like is wrong."""
        tries = (self._failing(Decisions(seed, {"setting": setting}), broken) for seed in range(count))
        return (decisions for decisions in tries if decisions is not None)

    def _shorter(self, best: Mapping[str, Sequence[int]], kind: str, broken: str) -> Mapping[str, Sequence[int]]:
        """Leave out pieces of the decisions of a kind, put zeros there, or smaller numbers: large pieces first."""
        size = len(best[kind])
        while size:
            place = 0
            while place < len(best[kind]):
                old = best[kind]
                before, piece, after = old[:place], old[place : place + size], old[place + size :]
                pieces = [[], [0] * len(piece), *([n] for n in range(1, piece[0]) if size == 1)]
                simpler = ({**best, kind: [*before, *instead, *after]} for instead in pieces)
                tries = (self._failing(Decisions(given=decisions), broken) for decisions in simpler)
                shorter = next((taken for taken in tries if taken and _weight(taken) < _weight(best)), None)
                if shorter is None:
                    place += size
                else:
                    best = shorter
            size //= 2
        return best

    def _failing(self, choose: Decisions, broken: str) -> dict[str, list[int]] | None:
        """The decisions that this history takes, without the zeros at their ends; None if nothing like it is wrong."""
        if not self.broken(choose).startswith(broken):
            return None
        for kind, taken in choose.taken.items():
            while kind != "setting" and taken and not taken[-1]:
                taken.pop()
        return choose.taken
