"""What lying clients send in place of what they measured, so that rules of aggregation can be tried (docs/robust.md).

Liars are as strong as proofs let them be: they know what all honest clients of the round send, and the server's rule.
What they send is a function of the run's seed, the round and the honest replies, so that a run repeats to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import is_number, require, require_int
from decomfl_lab.noise import derive_seed, direction
from decomfl_lab.noise.draws import STREAM, draws_of
from decomfl_lab.plugins import OwnFunction
from decomfl_lab.protocol.aggregation import Krum, exact_mean
from decomfl_lab.protocol.messages import Reply

# Which random choices these are, beside those of server, clients and data.
_WHO, _LIES = 12, 13

_HALVINGS = 40

_F64 = NDArray[np.float64]


_SCALES = {
    "gaussian": 200.0,
    "sign": 1.0,
    "scaled": 100.0,
    "constant": 100.0,
    "inner-product": 1.0,
    "a-little": 1.5,
    "trim": 2.0,
    "krum": 1.0,
}
"""The scale c of each kind where none is given."""

ATTACKS = tuple(_SCALES)
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

    A function of the user's own is given g_i, shape (K, P), the honest replies (h, K, P), and z (K, P), standard normal
    numbers, others for each liar and round. All are read-only; it returns what the liar sends.

    Of signs a liar sends the sign of that, 1 of 0. Lies are kept within what float32 holds.

    Raises:
        InputError: If a value is out of range.

    Source: Blanchard et al., NeurIPS 2017 (gaussian); Baruch, Baruch and Goldberg, "A little is enough", NeurIPS 2019
    (a-little); Xie, Koyejo and Gupta, "Fall of empires", UAI 2019 (inner-product); Fang, Cao, Jia and Gong, "Local
    model poisoning attacks to Byzantine-robust federated learning", USENIX Security 2020 (trim, krum). The authors'
    code of DeComFL has gaussian, sign, trim and krum.
    """

    kind: str  # one of ``ATTACKS``, or a function of the user's own
    f: int  # the liars of a round; fewer where not more than f answer, as one is honest
    seed: int  # the run's seed
    scale: float = 0.0  # c, in the unit of a scalar for gaussian and constant; 0 for that of the table

    def __post_init__(self) -> None:
        require_int("attackers f", self.f, 1)
        sound = is_number(self.scale) and self.scale >= 0
        require(sound, "attack_scale c", "be a finite number of at least 0", self.scale)
        unscaled = self.scale == 0 or self.kind in _SCALES
        require(unscaled, "attack_scale c", f"be left out with attack {self.kind}", self.scale)
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
        sent = []
        for reply in replies:
            if reply.client in liars:
                lie = self._lie(reply, honest, len(liars))
                if reply.scalars.dtype == np.int8:
                    reply = replace(reply, scalars=np.where(lie >= 0, 1, -1).astype(np.int8))
                else:
                    most = float(np.finfo(np.float32).max)
                    reply = replace(reply, scalars=np.clip(lie, -most, most).astype(np.float32))
            sent.append(reply)
        return sent

    def _lie(self, reply: Reply, honest: _F64, f: int) -> _F64:
        """What one of f liars sends, (K, P), of its own reply and the honest ones, (h, K, P)."""
        g = reply.scalars.astype(np.float64)
        path = self.seed, _LIES, reply.round, reply.client  # of this lie's random numbers
        c, mean = self.scale or _SCALES.get(self.kind, 1.0), exact_mean(honest)
        match self.kind:
            case OwnFunction() | "gaussian":
                # z, standard normal: a direction of the lab's stream.
                z = direction(derive_seed(*path), 0, g.size).astype(np.float64).reshape(g.shape)
                lie = c * z
                if isinstance(self.kind, OwnFunction):
                    lie = self.kind.array(g.shape, np.floating, g, honest, z)
            case "sign":
                lie = -c * g
            case "scaled":
                lie = c * g
            case "constant":
                lie = np.full(g.shape, c)
            case "inner-product":
                lie = -c * mean
            case "a-little":
                lie = mean - c * np.sqrt(exact_mean((honest - mean) ** 2))
            case "trim":
                draws = draws_of(STREAM, *path)
                uniform = np.array([draws.integers(1 << 24) / (1 << 24) for _ in range(g.size)]).reshape(g.shape)
                end = np.where(mean > 0, honest.min(axis=0), honest.max(axis=0))
                factor = 1 + (c - 1) * uniform
                # Farther from the mean: away from 0 where the end is beyond it, towards 0 where it is not.
                lie = np.where(mean * end > 0, end / factor, end * factor)
            case _:
                rule = Krum(f)
                replies = [scalars.astype(np.float32) for scalars in honest]
                # Of the honest ones alone, who are at least f + 3, Krum can tolerate fewer.
                taken = Krum(min(f, (len(honest) - 3) // 2))(replies)
                lie = -c * float(abs(taken).max()) * np.sign(taken, dtype=np.float64)
                for _ in range(_HALVINGS):
                    sent = lie.astype(np.float32)
                    if rule([*replies, *[sent] * f]).tobytes() == sent.tobytes():
                        break
                    lie = lie / 2
        return lie
