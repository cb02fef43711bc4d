// What the JavaScript reader makes of each log that is named, as JSON: [kind, words]. An error of a reader is a plain
// Error; one of another class is a fault of its own, and is its kind.
import { readFileSync } from "node:fs";
import { decomfl, rebuild } from "../../docs/_static/rebuild/decomfl.mjs";

const outcomes = process.argv.slice(2).map((path) => {
  try {
    const log = decomfl.readLog(readFileSync(path)), { compared } = rebuild(log);
    return ["rebuilt", decomfl.closing(log, compared)];
  } catch (error) {
    return [error.constructor === Error ? "refused" : error.constructor.name, error.message];
  }
});
console.log(JSON.stringify(outcomes));
