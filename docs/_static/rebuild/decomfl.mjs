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

function main(path) {
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
    process.exitCode = main(process.argv[2]);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 2;
  }
}
