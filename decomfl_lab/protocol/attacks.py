"""What lying clients send in place of what they measured, so that rules of aggregation can be tried (docs/robust.md).

Liars are as strong as proofs let them be: they know what all honest clients of the round send, and the server's rule.
What they send is a function of the run's seed, the round and the honest replies, so that a run repeats to the bit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import is_number, require, require_int
from decomfl_lab.noise import derive_seed, direction
from decomfl_lab.noise.draws import STREAM, draws_of
from decomfl_lab.protocol.aggregation import Krum
from decomfl_lab.protocol.messages import Reply

# Which random choices these are, beside those of server, clients and data.
_WHO, _LIES = 12, 13

_HALVINGS = 40

_F64 = NDArray[np.float64]


@dataclass(frozen=True)
class _Round:
    """What a liar knows: its scale c, the path of its random choices, its own reply (K, P), the honest ones, and f."""

    c: float
    path: tuple[int, ...]
    own: _F64
    honest: _F64
    f: int

    @property
    def mean(self) -> _F64:
        """ḡ, every sum rounded once."""
        return _sums(self.honest) / len(self.honest)

    @property
    def spread(self) -> _F64:
        """S of every scalar, s² = (1/h) Σ (g_i − ḡ)²."""
        return np.sqrt(_sums((self.honest - self.mean) ** 2) / len(self.honest))

    @property
    def normal(self) -> _F64:
        """Standard normal numbers (K, P), a direction of the lab's stream."""
        return direction(derive_seed(*self.path), 0, self.own.size).astype(np.float64).reshape(self.own.shape)

    @property
    def uniform(self) -> _F64:
        """Numbers in [0, 1), (K, P)."""
        draws = draws_of(STREAM, *self.path)
        return np.array([draws.integers(1 << 24) / (1 << 24) for _ in range(self.own.size)]).reshape(self.own.shape)


def _sums(values: _F64) -> _F64:
    columns = values.reshape(len(values), -1).T.tolist()
    return np.array([math.fsum(column) for column in columns]).reshape(values.shape[1:])


def _trim(at: _Round) -> _F64:
    """Beyond the honest numbers, by a factor in [1, c], on the side that the mean is not on."""
    low, high, mean = at.honest.min(axis=0), at.honest.max(axis=0), at.mean
    end = np.where(mean > 0, low, high)
    factor = 1 + (at.c - 1) * at.uniform
    # Farther from the mean: away from 0 where the end is beyond it, towards 0 where it is not.
    lie: _F64 = np.where(mean * end > 0, end / factor, end * factor)
    return lie


def _krum(at: _Round) -> _F64:
    """−λ sgn(g) for the reply g that Krum takes of the honest ones, with the largest λ = c‖g‖∞ 2^−j that it takes."""
    h, rule = len(at.honest), Krum(at.f)
    honest = [each.astype(np.float32) for each in at.honest]
    # Of the honest ones alone, who are at least f + 3, Krum can tolerate fewer.
    taken = Krum(min(at.f, (h - 3) // 2))(honest)
    sent = -at.c * float(abs(taken).max()) * np.sign(taken, dtype=np.float64)
    for _ in range(_HALVINGS):
        lie = sent.astype(np.float32)
        if rule([*honest, *[lie] * at.f]).tobytes() == lie.tobytes():
            break
        sent = sent / 2
    return sent


_KINDS: dict[str, tuple[float, Callable[[_Round], _F64]]] = {
    "gaussian": (200.0, lambda at: at.c * at.normal),
    "sign": (1.0, lambda at: -at.c * at.own),
    "scaled": (100.0, lambda at: at.c * at.own),
    "constant": (100.0, lambda at: np.full(at.own.shape, at.c)),
    "inner-product": (1.0, lambda at: -at.c * at.mean),
    "a-little": (1.5, lambda at: at.mean - at.c * at.spread),
    "trim": (2.0, _trim),
    "krum": (1.0, _krum),
}
"""The scale c of each kind where none is given, and what a liar sends."""

ATTACKS = tuple(_KINDS)
VOTES = ("gaussian", "sign", "constant")
"""Those that say something where replies are signs."""


@dataclass(frozen=True)
class Attack:
    """f of the clients that answer a round lie, others in every round.

        gaussian       c z,  z ~ N(0, I)                                    c = 200
        sign           −c g_i,  g_i what the liar measured                  c = 1
        scaled         c g_i                                                c = 100
        constant       c                                                    c = 100
        inner-product  −c ḡ,  ḡ the mean of the honest replies              c = 1
        a-little       ḡ − c s,  s their spread in each scalar              c = 1.5
        trim           beyond the smallest honest number where ḡ > 0, beyond the largest elsewhere, by a factor
                       in [1, c], another for each liar and scalar          c = 2
        krum           −λ sgn(g),  g the reply that Krum takes of the honest ones, λ the largest of c‖g‖∞ 2^−j,
                       j = 0..39, at which Krum takes the lie               c = 1

    Of signs a liar sends the sign of that, 1 of 0. Lies are kept within what float32 holds.

    Raises:
        InputError: If a value is out of range.

    Source: Blanchard et al., NeurIPS 2017 (gaussian); Baruch, Baruch and Goldberg, "A little is enough", NeurIPS 2019
    (a-little); Xie, Koyejo and Gupta, "Fall of empires", UAI 2019 (inner-product); Fang, Cao, Jia and Gong, "Local
    model poisoning attacks to Byzantine-robust federated learning", USENIX Security 2020 (trim, krum). The authors'
    code of DeComFL has gaussian, sign, trim and krum.
    """

    kind: str  # one of ``ATTACKS``
    f: int  # the liars of a round; fewer where not more than f answer, as one is honest
    seed: int  # the run's seed
    scale: float = 0.0  # c, in the unit of a scalar for gaussian and constant; 0 for that of the table

    def __post_init__(self) -> None:
        require_int("attackers f", self.f, 1)
        sound = is_number(self.scale) and self.scale >= 0
        require(sound, "attack_scale c", "be a finite number of at least 0", self.scale)
        if self.kind == "trim":
            require(self.scale == 0 or self.scale >= 1, "attack_scale c of trim", "be 0 or at least 1", self.scale)

    @property
    def least(self) -> int:
        """The fewest replies of a round that it is defined for."""
        return Krum(self.f).least if self.kind == "krum" else self.f + 1

    def liars(self, r: int, answered: Sequence[int]) -> tuple[int, ...]:
        """Who lies in round r, of the clients that answered: f of them, uniformly without replacement, sorted."""
        f = min(self.f, len(answered) - 1)
        chosen = draws_of(STREAM, self.seed, _WHO, r).permutation(len(answered))[:f]
        return tuple(sorted(sorted(answered)[j] for j in chosen.tolist()))

    def __call__(self, replies: Sequence[Reply]) -> list[Reply]:
        """The replies of a round with the liars' scalars changed; losses, which are not sent, stay as they were."""
        r = replies[0].round
        enough = self.kind != "krum" or len(replies) >= self.least
        require(enough, "replies with attack krum", f"number at least {self.least}", len(replies))
        liars = self.liars(r, [reply.client for reply in replies])
        honest = np.stack([reply.scalars.astype(np.float64) for reply in replies if reply.client not in liars])
        scale, lie = _KINDS[self.kind]
        found = []
        for reply in replies:
            if reply.client in liars:
                path, own = (self.seed, _LIES, r, reply.client), reply.scalars.astype(np.float64)
                said = lie(_Round(self.scale or scale, path, own, honest, len(liars)))
                if reply.scalars.dtype == np.int8:
                    reply = replace(reply, scalars=np.where(said >= 0, 1, -1).astype(np.int8))
                else:
                    most = float(np.finfo(np.float32).max)
                    reply = replace(reply, scalars=np.clip(said, -most, most).astype(np.float32))
            found.append(reply)
        return found
