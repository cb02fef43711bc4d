// What the page's worker makes of each log that is named, in a thread that is its own, as JSON: [words, seconds]. Words are
// why it is refused, or what it has rebuilt: d, how many digests, and whether they agree; "busy" where that takes longer than
// 3 seconds, and the thread is ended. What is printed at the end is the most memory, in MB.
import { readFileSync } from "node:fs";
import { Worker } from "node:worker_threads";
import "../../docs/_static/rebuild/decomfl.js";
import "../../docs/_static/rebuild/worker.js";

const { decomfl, decomflWork } = globalThis;
const script = `const { parentPort } = require("node:worker_threads");
  globalThis.postMessage = (message, moved) => parentPort.postMessage(message, moved);
  parentPort.on("message", (data) => globalThis.onmessage({ data }));
  ${decomfl.source}
  (${decomflWork.install})(${decomflWork});`;

async function outcome(bytes) {
  const thread = new Worker(script, { eval: true }), began = performance.now(), waiting = [];
  thread.on("message", (data) => "at" in data || waiting.shift()(data));
  thread.on("error", (error) => waiting.shift()({ refused: `the thread ended: ${error.message}` }));
  const late = new Promise((resolve) => setTimeout(resolve, 3000, { refused: "busy" }).unref());
  const ask = async (question) => {
    const answer = await Promise.race([late, new Promise((resolve) => {
      waiting.push(resolve);
      thread.postMessage({ bytes, limits: decomfl.PAGE, ...question });
    })]);
    if ("refused" in answer) throw new Error(answer.refused);
    return answer;
  };
  try {
    const { log } = await ask({ ask: "read" }), { d, x0 } = log.header, compared = [];
    await ask({ ask: "begin", first: 0, end: d });
    for (const [at, recorded] of [x0, ...log.rounds.map(({ digest }) => digest)].entries()) {
      const { vectors } = await ask({ ask: "advance", to: at, count: recorded ? 9 : 0 });
      if (recorded) compared.push((await ask({ ask: "digest", vectors })).found === recorded);
    }
    return `${d} ${compared.length} ${compared.every(Boolean)}`;
  } catch (error) {
    return error.message;
  } finally {
    await thread.terminate();
    times.push((performance.now() - began) / 1000);
  }
}

const times = [], words = [];
for (const path of process.argv.slice(2)) words.push(await outcome(new Uint8Array(readFileSync(path))));
console.log(JSON.stringify([words.map((said, n) => [said, times[n]]), process.resourceUsage().maxRSS / 1024]));
