// What a worker of the page does: it reads a log, replays a part of it, or makes a digest. Each question gets one
// answer, in order; between them come messages { at }, how far it is. A page opened from the disk may make no worker
// of a file, so it takes the text of this function.
"use strict";

globalThis.decomflWork = function work(say) {
  const { digestOf, partOf, readLog } = globalThis.decomfl;
  const SHOWN = 40; // numbers of a round that the page shows
  let part = null, at = 0;

  const answers = {
    // What the page shows of a log, once it is sure that all of it can be followed.
    read({ bytes, limits }) {
      let told = 0;
      const log = readLog(bytes, limits, (done) => {
        if (done - told < 65536) return;
        told = done;
        say({ at: done / bytes.length });
      });
      partOf(log, 0, 0); // refuses a run that the reader cannot follow
      const { d, x0, config } = log.header;
      const numbers = log.rounds.reduce((sum, { K, P }) => sum + K * P, 0);
      const rounds = log.rounds.map(({ K, P, answered, digest, scalars }) =>
        ({ K, P, answered, digest, scalars: scalars.slice(0, SHOWN) }));
      return { log: { header: { d, x0, config }, rounds, numbers, bytes: bytes.length, cut: log.cut } };
    },

    // Makes elements first, ..., end - 1 of x_0.
    begin({ bytes, limits, first, end }) {
      part = partOf(readLog(bytes, limits), first, end);
      at = 0;
      return {};
    },

    // Replays the rounds until one; sends so many of its vectors: x, and those of the optimizer.
    advance({ to, count }) {
      part.advance(at, to);
      at = to;
      return { vectors: part.vectors.slice(0, count).map((vector) => vector.slice()) };
    },

    digest: ({ vectors }) => ({ found: digestOf(vectors) }),
  };

  return ({ data }) => {
    try {
      const answer = answers[data.ask](data), sent = answer.vectors ?? [];
      say(answer, sent.map(({ buffer }) => buffer));
    } catch (error) {
      const own = error.constructor === Error; // any other is of the browser: no memory, no room on the stack
      say({ refused: own ? error.message : `this browser cannot hold the log (${error.message})` });
    }
  };
};

// Makes a worker of the one that this runs in; its messages are moved, where they can be.
globalThis.decomflWork.install = (work) => {
  globalThis.onmessage = work((message, moved = []) => globalThis.postMessage(message, moved));
};
