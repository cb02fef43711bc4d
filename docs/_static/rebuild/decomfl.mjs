// The functions of decomfl.js for Node: `node decomfl.mjs run.dcl` rebuilds the model of a run and compares the digests.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import "./decomfl.js";

export const decomfl = globalThis.decomfl;
const { closing, digestOf, partOf, readLog } = decomfl;

// x and the optimizer's vectors after all rounds, and every digest of the log beside the one that was found; if x_0 is
// another one, no record is applied.
export function rebuild(log) {
  const part = partOf(log), compared = [{ round: 0, recorded: log.header.x0, found: digestOf(part.vectors) }];
  if (compared[0].found !== log.header.x0) return { vectors: part.vectors, compared };
  log.rounds.forEach(({ digest: recorded }, r) => {
    part.advance(r, r + 1);
    if (recorded) compared.push({ round: r + 1, recorded, found: digestOf(part.vectors) });
  });
  return { vectors: part.vectors, compared };
}

const USAGE = `usage: node decomfl.mjs RUN.dcl

Rebuilds the model of a run from its log and prints a line for each digest: the round, the digest found here, and
whether the log's agrees. Exit code 0: all agree; 1: one differs; 2: this is no log, or not one that is read here.`;

function main(path, ...more) {
  if (path === "--help" || path === "-h") {
    console.log(USAGE);
    return 0;
  }
  if (!path || more.length) {
    console.error(path ? `one log is read, got ${more.length + 1}: ${path} ${more.join(" ")}` : USAGE.split("\n")[0]);
    return 2;
  }
  const log = readLog(readFileSync(path)), { compared } = rebuild(log);
  if (log.cut) console.error(`the last ${log.cut} bytes are an entry that was not written whole; they are left out`);
  for (const { round, recorded, found } of compared) {
    console.log(`${round} ${found} ${found === recorded ? "agrees" : `DIFFERS from ${recorded}`}`);
  }
  console.log(closing(log, compared));
  return compared.every(({ recorded, found }) => recorded === found) ? 0 : 1;
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  try {
    process.exitCode = main(...process.argv.slice(2));
  } catch (error) {
    const why = { ENOENT: "there is no such file", EISDIR: "it is a folder", EACCES: "it may not be read" }[error.code];
    console.error(why ? `${process.argv[2]} cannot be read: ${why}` : error.message);
    process.exitCode = 2;
  }
}
