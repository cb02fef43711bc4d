// What of the vectors in a folder the JavaScript reader has otherwise, as a JSON list of names.
import { readFileSync } from "node:fs";
import { decomfl } from "../../docs/_static/rebuild/decomfl.mjs";

const at = (name) => JSON.parse(readFileSync(`${process.argv[2]}/${name}.json`, "utf8"));
const bytes = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const word = (n) => n.toString(16).padStart(8, "0");
const bits = (v) => Array.from(new Uint32Array(v.buffer, v.byteOffset, v.length), word);
const seed = (hex) => BigInt(`0x${hex}`), wrong = [];
const same = (what, found, wanted) => found === wanted || wrong.push(what);
for (const { message, check } of at("checks").crc32) same("crc32", decomfl.crc32(bytes(message)), parseInt(check, 16));
for (const { message, hash } of at("checks").blake2b_128) {
  same(`blake2b ${message.length / 2}`, decomfl.hex(decomfl.blake2b(bytes(message), 16)), hash);
}
for (const { seed: own, path, below } of at("checks").seeds) {
  same(`seed ${path}`, decomfl.derive(seed(own), ...path.map(seed)), seed(below));
}
for (const { distribution, key, p, d, bits: wanted } of at("stream").directions) {
  const make = decomfl.direction(distribution, seed(key), p, d), z = new Float32Array(256);
  for (const tile of [0, 1]) make(z.subarray(128 * tile, 128 * (tile + 1)), tile);
  same(`${distribution} ${key}`, bits(z).slice(0, d).join(" "), wanted);
}
for (const { tensor, key, elements, bits: wanted, ...own } of at("starts")) {
  const before = { shape: [0], draw: "constant", scale: 0 };
  const tensors = [...Array(tensor).fill(before), { shape: [elements], ...own }];
  const x = decomfl.startOf({ d: elements, start: { by: "stream", key, tensors } });
  same(`start ${own.draw} ${tensor}`, bits(x).join(" "), wanted);
}
console.log(JSON.stringify(wrong));
