// Rebuilds the model of a run from its log: x_0 from the noise stream, then the records, to the bit.
// docs/run-log.md and docs/noise-stream.md say all that is done here. Node imports it through decomfl.mjs; a page loads
// it as a plain script, which works from the disk too, and gives the text of it, `decomfl.source`, to its workers.
"use strict";

globalThis.decomfl = (function library() {
  // + - * / and sqrt of float32 numbers, made with doubles and rounded by f, are those of float32. Arrays have the byte
  // order of the machine, which is that of the files, little-endian, wherever there is a browser.
  const f = Math.fround;
  const TILE = 128; // elements that are made together: 4 words of each of 32 blocks

  // Key, kind, whether it may be left out (2: or null), least and most of numbers, the longest list, names, words.
  // Of a real number the longest is the bits that it may have where it stands as a whole one, 0 for any.
  // Rules: python -m docs.reader_rules writes them.
  const NO_LOW_RANK = "as only version 0.1 of decomfl-lab has low-rank directions", LOW_RANK = 3, MOST_SCALARS = 1073741820;
  const LOG_RULES = {
    header: [
      ["run_seed", "whole", 0, "0", "18446744073709551615", 0, "", "be an integer in 0..18446744073709551615"],
      ["config", "table", 0, "0", "0", 0, "", "be a table"],
      ["data", "text", 0, "0", "0", 0, "", "be text"],
      ["source", "text", 1, "0", "0", 0, "", "be text"],
      ["code", "text", 1, "0", "0", 0, "", "be text"],
      ["shape", "wholes", 0, "1", "281474976710656", 16, "", "be a list of at most 16 whole numbers in 1..281474976710656"],
      ["dtype", "name", 0, "0", "0", 0, "bfloat16 bool float16 float32 float64 int16 int32 int64 int8 uint8 ", "be one of bfloat16, bool, float16, float32, float64, int16, int32, int64, int8, uint8"],
      ["classes", "whole", 0, "0", "16777216", 0, "", "be a whole number in 0..16777216"],
      ["d", "whole", 0, "1", "281474976710656", 0, "", "be a whole number in 1..281474976710656"],
      ["x0", "hex", 0, "0", "32", 0, "", "be text of 32 hexadecimal digits"],
      ["stream", "whole", 0, "1", "1", 0, "", "be 1"],
      ["start", "table", 1, "0", "0", 0, "", "be a table"],
      ["tensors", "list", 1, "0", "0", 65536, "", "be a list of at most 65536"],
      ["groups", "list", 1, "0", "0", 4096, "", "be a list of at most 4096"],
    ],
    start: [
      ["key", "hex", 0, "0", "16", 0, "", "be text of 16 hexadecimal digits"],
      ["tensors", "list", 0, "0", "0", 65536, "", "be a list of at most 65536"],
    ],
    tensor: [
      ["draw", "name", 0, "0", "0", 0, "constant uniform normal ", "be one of constant, uniform, normal"],
      ["scale", "real", 0, "-3.4028234663852886e+38", "3.4028234663852886e+38", 0, "", "be a float32 number"],
      ["shape", "wholes", 0, "0", "9223372036854775807", 16, "", "be a list of at most 16 whole numbers in 0..9223372036854775807"],
      ["cut", "real", 2, "0.1", "10", 0, "", "be in 0.1..10"],
    ],
    config: [
      ["rank", "whole", 1, "1", "1", 0, "", "be 1, as only version 0.1 of decomfl-lab has low-rank directions"],
      ["distribution", "name", 1, "0", "0", 0, "gaussian sphere rademacher ", "be one of gaussian, sphere, rademacher, as only version 0.1 of decomfl-lab has low-rank directions"],
      ["method", "text", 1, "0", "0", 0, "", "be text"],
      ["clients", "whole", 1, "1", "9223372036854775807", 0, "", "be an integer of at least 1"],
      ["rounds", "whole", 1, "1", "9223372036854775807", 0, "", "be an integer of at least 1"],
      ["seed", "whole", 1, "0", "18446744073709551615", 0, "", "be an integer in 0..18446744073709551615"],
      ["momentum", "real", 1, "0", "0.9999999999999999", 63, "", "be in [0, 1)"],
      ["weight_decay", "real", 1, "0", "1.7976931348623157e+308", 63, "", "be a finite number of at least 0"],
      ["beta2", "real", 1, "0", "0.9999999999999999", 63, "", "be in [0, 1)"],
      ["epsilon", "real", 1, "5e-324", "1.7976931348623157e+308", 63, "", "be a finite number above 0"],
      ["momentum_form", "name", 1, "0", "0", 0, "torch paper ", "be one of torch, paper"],
      ["private_seeds", "truth", 1, "0", "0", 0, "", "be True or False"],
      ["rule", "name", 1, "0", "0", 0, "sgd sign adamm ", "be one of sgd, sign, adamm"],
      ["precision", "name", 1, "0", "0", 0, "float32 bfloat16 float16 ", "be one of float32, bfloat16, float16"],
    ],
    record: [
      ["round", "whole", 0, "0", "4294967295", 0, "", "be in 0..4294967295"],
      ["K", "whole", 0, "1", "65535", 0, "", "be in 1..65535"],
      ["P", "whole", 0, "1", "65535", 0, "", "be in 1..65535"],
      ["distribution", "whole", 0, "0", "2", 0, "", "be in 0..2"],
      ["stream version", "whole", 0, "1", "1", 0, "", "be 1"],
      ["seeding", "whole", 0, "0", "4", 0, "", "be in 0..4"],
    ],
  };
  // End of the rules.

  const refuse = (text) => {
    throw new Error(text);
  };

  // A value as an error shows it: short, and no more of a list or table than what it is.
  function shown(value) {
    if (typeof value === "object" && value) return Array.isArray(value) ? "a list" : "a table";
    const text = typeof value === "string" && value[0] !== NUMBER ? JSON.stringify(value) : `${value}`.replace(NUMBER, "");
    return text.length > 80 ? `${text.slice(0, 60)} ... ${text.slice(-15)}` : text;
  }

  // Refuses, in the words of decomfl replay, unless a rule holds.
  const must = (holds, name, rule, value) => holds || refuse(`${name} must ${rule}, got ${shown(value)}`);
  const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

  // 1. Hashes. --------------------------------------------------------------------------------------------------------
  function crc32(bytes) {
    let crc = -1;
    for (const byte of bytes) {
      crc ^= byte;
      for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
    }
    return ~crc >>> 0;
  }

  // BLAKE2b (RFC 7693). A word of 64 bits is two of 32 here, the low one first.
  const IV = Uint32Array.of(
    0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a,
    0xade682d1, 0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
  );
  const ORDERS = [
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
  ].map((row) => Array.from(row, (digit) => 2 * parseInt(digit, 16)));
  const QUARTERS = [
    [0, 8, 16, 24], [2, 10, 18, 26], [4, 12, 20, 28], [6, 14, 22, 30], // columns, then diagonals
    [0, 10, 20, 30], [2, 12, 22, 24], [4, 14, 16, 26], [6, 8, 18, 28],
  ];

  function add(v, a, low, high) {
    low += v[a];
    v[a + 1] += high + Math.floor(low / 2 ** 32);
    v[a] = low;
  }

  // v_d becomes v_d ^ v_a, turned to the right.
  function turn(v, d, a, by) {
    let low = v[d] ^ v[a], high = v[d + 1] ^ v[a + 1];
    if (by >= 32) [low, high, by] = [high, low, by - 32];
    v[d] = by ? (low >>> by) | (high << (32 - by)) : low;
    v[d + 1] = by ? (high >>> by) | (low << (32 - by)) : high;
  }

  function mix(v, m, a, b, c, d, x, y) {
    for (const [word, first, second] of [[x, 32, 24], [y, 16, 63]]) {
      add(v, a, v[b] + m[word], v[b + 1] + m[word + 1]);
      turn(v, d, a, first);
      add(v, c, v[d], v[d + 1]);
      turn(v, b, c, second);
    }
  }

  function blake2b(bytes, size, key = [], person = []) {
    const h = IV.slice(), v = new Uint32Array(32), block = new Uint8Array(128), m = new Uint32Array(block.buffer);
    h[0] ^= 0x01010000 ^ (key.length << 8) ^ size;
    person.forEach((byte, n) => (h[12 + (n >> 2)] ^= byte << (8 * (n & 3))));
    const first = key.length ? 128 : 0, end = first + bytes.length;
    for (let at = 0; at < end || at === 0; at += 128) {
      block.fill(0);
      block.set(at < first ? key : bytes.subarray(at - first, at - first + 128));
      const done = Math.min(at + 128, end), last = at + 128 >= end;
      v.set(h);
      v.set(IV, 16);
      v[24] ^= done;
      v[25] ^= Math.floor(done / 2 ** 32);
      if (last) [v[28], v[29]] = [~v[28], ~v[29]];
      for (let round = 0; round < 12; round++) {
        const order = ORDERS[round % 10];
        QUARTERS.forEach(([a, b, c, d], n) => mix(v, m, a, b, c, d, order[2 * n], order[2 * n + 1]));
      }
      for (let n = 0; n < 16; n++) h[n] ^= v[n] ^ v[n + 16];
    }
    return Uint8Array.from({ length: size }, (_, n) => h[n >> 2] >>> (8 * (n & 3)));
  }

  const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const bytesOf = (vector) => new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength);
  const PERSON = Array.from("decomfl-v1", (letter) => letter.charCodeAt(0));

  function joined(parts) {
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
    return whole;
  }

  // The seed (BigInt) at a path below another one.
  function derive(seed, ...path) {
    const numbers = BigUint64Array.of(seed, ...path.map(BigInt));
    const found = blake2b(bytesOf(numbers.subarray(1)), 8, bytesOf(numbers.subarray(0, 1)), PERSON);
    return new BigUint64Array(found.buffer)[0];
  }

  // 2. The noise stream. A key is the two words of a seed. ------------------------------------------------------------
  // The 128 words of a tile: element 32 w + lane is word w of block 32 tile + lane.
  function tileWords(out, [low, high], tile, c2, tag) {
    for (let lane = 0; lane < 32; lane++) {
      const block = 32 * tile + lane;
      let c0 = block | 0, c1 = Math.floor(block / 2 ** 32) | 0, c = c2 | 0, c3 = tag, k0 = low | 0, k1 = high | 0;
      for (let round = 0; round < 10; round++) {
        // The high words of 0xd2511f53 c0 and 0xcd9e8d57 c, from products of 16-bit halves.
        const a = c0 & 0xffff, b = c0 >>> 16, p = c & 0xffff, q = c >>> 16;
        const s = Math.imul(b, 0x1f53) + (Math.imul(a, 0x1f53) >>> 16) | 0;
        const t = Math.imul(a, 0xd251) + (s & 0xffff) | 0;
        const first = Math.imul(b, 0xd251) + (s >>> 16) + (t >>> 16) | 0;
        const u = Math.imul(q, 0x8d57) + (Math.imul(p, 0x8d57) >>> 16) | 0;
        const w = Math.imul(p, 0xcd9e) + (u & 0xffff) | 0;
        const second = Math.imul(q, 0xcd9e) + (u >>> 16) + (w >>> 16) | 0;
        const lowest = Math.imul(c0, 0xd2511f53);
        c0 = second ^ c1 ^ k0;
        c1 = Math.imul(c, 0xcd9e8d57);
        c = first ^ c3 ^ k1;
        c3 = lowest;
        k0 = (k0 + 0x9e3779b9) | 0;
        k1 = (k1 + 0xbb67ae85) | 0;
      }
      out[lane] = c0;
      out[lane + 32] = c1;
      out[lane + 64] = c;
      out[lane + 96] = c3;
    }
  }

  const [L0, L1, L2, L3, L4, L5, L6] = [
    -0.244219363, 0.375654489, -0.409095138, 0.497935861, -0.666320562, 1.00002801, -2.00000167,
  ].map(f);
  const [S0, S1, S2, S3] = [-0.0043710256, 0.0795006678, -0.645925999, 1.57079518].map(f);
  const [C0, C1, C2, C3] = [0.000870188756, -0.0208331067, 0.25366348, -1.23370039].map(f);
  const split = (seed) => [Number(seed & 0xffffffffn) | 0, Number(seed >> 32n) | 0];
  const room = new Uint32Array(TILE); // words that nobody needs any more
  const LOG_2_TWICE = f(1.38629436), float = new Float32Array(1), bits = new Int32Array(float.buffer);

  // The normal numbers of a tile: two of each pair of words, by Box and Muller.
  function gaussianTile(z, key, tile, c2, tag) {
    tileWords(room, key, tile, c2, tag);
    for (let n = 0; n < 64; n++) {
      const at = n + (n & 32), w1 = room[at + 32] | 0;
      float[0] = (room[at] >>> 8) | 1;
      const found = bits[0], e = (found - 0x3f3504f3) >> 23;
      bits[0] = found - (e << 23);
      const x = f(float[0] - 1);
      let q = f(f(f(f(L0 * x) + L1) * x) + L2);
      q = f(f(f(f(q * x) + L3) * x) + L4);
      q = f(f(f(f(q * x) + L5) * x) + L6);
      const rho = f(Math.sqrt(f(f((24 - e) * LOG_2_TWICE) + f(x * q))));
      const t = f(((w1 >> 8) | 1) * 2 ** -23), u = f(t * t);
      const sine = f(t * f(f(f(f(f(f(S0 * u) + S1) * u) + S2) * u) + S3));
      const cosine = f(f(f(f(f(f(f(f(C0 * u) + C1) * u) + C2) * u) + C3) * u) + 1);
      z[at] = f(rho * (w1 & 1 ? -cosine : cosine));
      z[at + 32] = f(rho * sine);
    }
  }

  function sphereScale(key, p, d) {
    const g = new Float32Array(TILE), squares = new Float64Array(TILE);
    let sum = 0;
    for (let start = 0; start < d; start += TILE) {
      gaussianTile(g, key, start / TILE, p, 0);
      for (let j = 0; j < TILE; j++) squares[j] = start + j < d ? g[j] * g[j] : 0;
      for (let half = 64; half; half >>= 1) for (let j = 0; j < half; j++) squares[j] += squares[j + half];
      sum += squares[0];
    }
    return f(Math.sqrt(d / sum));
  }

  // What makes the tiles of direction p of a seed.
  function direction(distribution, seed, p, d) {
    const key = split(seed);
    if (distribution === "rademacher") {
      return (z, tile) => {
        tileWords(room, key, tile, p >>> 5, 1);
        for (let j = 0; j < TILE; j++) z[j] = (room[j] << (p & 31)) & 0x80000000 ? -1 : 1;
      };
    }
    const radius = distribution === "sphere" ? sphereScale(key, p, d) : 1;
    return (z, tile) => {
      gaussianTile(z, key, tile, p, 0);
      if (radius !== 1) scale(z, radius);
    };
  }

  // 3. The start. -----------------------------------------------------------------------------------------------------
  const MOST = 2 ** 25; // elements of x

  // How many elements a tensor has, once what the header says of it is known to be sound.
  function sizeOf({ shape, draw, scale, cut }) {
    must(draw === "constant" || f(scale) >= 0, "scale", "be 0 or more", scale);
    must((cut ?? null) === null || draw === "normal", "cut", "be left out unless draw is normal", cut);
    return shape.reduce((a, b) => a * b, 1);
  }

  // Elements first, ..., first + x.length - 1 of tensor t.
  function fill(x, { draw, scale, cut: given }, key, t, first) {
    const cut = given ?? Infinity, z = new Float32Array(TILE), next = new Float32Array(TILE);
    x.fill(scale);
    if (draw === "constant") return;
    for (let tile = Math.floor(first / TILE); tile * TILE < first + x.length; tile++) {
      if (draw === "uniform") {
        tileWords(room, key, tile, t, 4);
        for (let j = 0; j < TILE; j++) z[j] = (((room[j] | 0) >> 8) | 1) * 2 ** -23;
      } else {
        gaussianTile(z, key, tile, t, 4);
        for (let attempt = 1; attempt < 65536 && z.some((one) => Math.abs(one) > cut); attempt++) {
          gaussianTile(next, key, tile, t + 65536 * attempt, 4);
          for (let j = 0; j < TILE; j++) if (Math.abs(z[j]) > cut) z[j] = next[j];
        }
      }
      const at = TILE * tile - first; // where the tile begins in x
      for (let j = Math.max(0, -at); j < Math.min(TILE, x.length - at); j++) x[at + j] *= z[j];
    }
  }

  // Elements first, ..., end - 1 of x_0.
  function startOf({ start, d }, first = 0, end = d) {
    if (start?.by === "file") refuse("x_0 is packed in the log (--log-start), which cannot be read here: decomfl replay does that");
    if (start?.by !== "stream") refuse("x_0 is not in the log: only models built into decomfl can be rebuilt here, others by decomfl replay");
    const { tensors } = start;
    const sizes = tensors.map(sizeOf), elements = sizes.reduce((sum, size) => sum + size, 0);
    must(elements === d, "elements of the tensors of x_0", `be d = ${d} in all`, elements);
    must(d <= MOST, "d in the header", `fit into the ${MOST} elements that are rebuilt here`, d);
    const key = split(BigInt(`0x${start.key}`)), x = new Float32Array(end - first);
    let at = 0; // where tensor t begins
    tensors.forEach((tensor, t) => {
      const from = Math.max(first, at), to = Math.min(end, at + sizes[t]);
      if (from < to) fill(x.subarray(from - first, to - first), tensor, key, t, from - at);
      at += sizes[t];
    });
    return x;
  }

  // 4. The log. -------------------------------------------------------------------------------------------------------
  const NUMBER = "\uffff"; // stands before a number that is text: no letter, so it stands in no header

  // The header in JSON, whole numbers that a double cannot hold as text; and once more with all numbers as text, as the
  // file has them, for the rules. Nothing if it is none.
  function parsed(bytes) {
    const token = /"(?:\\.|[^"\\])*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
    const isNumber = (one) => one[0] !== '"' && one.length < 400; // decomfl reads none that is longer
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes), plain = JSON.stringify(JSON.parse(text));
      if (/\\ud[89a-f]|\uffff/.test(plain.replaceAll("\\\\", ""))) return [{}, {}]; // half of a letter
      const large = text.replace(token, (one) => (/^-?\d{16,}$/.test(one) ? `"${one}"` : one));
      return [JSON.parse(large), JSON.parse(text.replace(token, (one) => (isNumber(one) ? `"${NUMBER}${one}"` : one)))];
    } catch {
      return [{}, {}];
    }
  }

  // Whether a value is as a rule has it.
  function fits(value, [, kind, optional, least, most, longest, names]) {
    const isText = typeof value === "string" && value[0] !== NUMBER;
    const number = typeof value === "string" && value[0] === NUMBER ? value.slice(1) : "";
    const isWhole = /^-?\d+$/.test(number), inside = (found, as) => found >= as(least) && found <= as(most);
    if (value === null && optional === 2) return true;
    switch (kind) {
      case "text": return isText;
      case "hex": return isText && value.length === Number(most) && /^[0-9a-f]*$/.test(value);
      case "name": return isText && names.split(" ").slice(0, -1).includes(value);
      case "truth": return typeof value === "boolean";
      case "table": return isTable(value);
      case "list": return Array.isArray(value) && value.length <= longest;
      case "whole": return isWhole && inside(BigInt(number), BigInt);
      case "wholes": return Array.isArray(value) && value.length <= longest && value.every((one) => fits(one, [, "whole", , least, most]));
      default: return number !== "" && inside(Number(number), Number) && !(isWhole && longest && Math.abs(Number(number)) >= 2 ** longest);
    }
  }

  // Refuses unless a table keeps the rules; "where" stands before a key, "of" behind it.
  function check(table, rules, where, of) {
    for (const rule of rules) {
      const [key, , optional, , , , , words] = rule, value = Object.hasOwn(table, key) ? table[key] : undefined;
      must(value !== undefined || optional, where ? `${where.slice(0, -1)} in the ${of}` : of, `have ${key}`, value);
      if (value !== undefined) must(fits(value, rule), `${where}${key} in the ${of}`, words, value);
    }
  }

  // Refuses a header that breaks a rule.
  function checkHeader(raw) {
    must(fits(raw.run_seed, LOG_RULES.header[0]), "run_seed in the header", LOG_RULES.header[0].at(-1), raw.run_seed);
    check(raw, LOG_RULES.header, "", "header");
    check(raw.config, LOG_RULES.config, "", "log");
    if (raw.start?.by !== "stream") return;
    check(raw.start, LOG_RULES.start, "start.", "header");
    raw.start.tensors.forEach((tensor, t) => {
      must(isTable(tensor), `start.tensors[${t}] in the header`, "be a table", tensor);
      check(tensor, LOG_RULES.tensor, `start.tensors[${t}].`, "header");
    });
  }

  // Takes numbers from the front of some bytes.
  function reader(bytes, what) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    const take = (count) => (at + count > bytes.length ? refuse(`${what} ends too early`) : (at += count) - count);
    return {
      u8: () => view.getUint8(take(1)),
      u16: () => view.getUint16(take(2), true),
      u32: () => view.getUint32(take(4), true),
      u64: () => view.getBigUint64(take(8), true),
      f32: () => view.getFloat32(take(4), true),
      f64: () => view.getFloat64(take(8), true),
      bytes: (count) => bytes.subarray(take(count), at),
      rest: () => bytes.subarray(at),
    };
  }

  const many = (count, one) => Array.from({ length: count }, (_, n) => one(n));

  // The streams [seed, p] of the P directions of step k, as the record's seeding has them.
  function streamsOf(seeds, seeding, runSeed, r, k, P) {
    const view = new DataView(seeds.buffer, seeds.byteOffset, seeds.length), pool = seeding === 4 ? derive(runSeed, 0, 0) : null;
    const sent = (n) => view.getBigUint64(8 * n, true), place = (n) => view.getUint16(2 * n, true);
    if (seeding === 0) return many(P, (p) => [sent(k * P + p), 0]); // a seed for each direction
    if (seeding === 4) return many(P, (p) => [pool, place(k * P + p)]); // places in a pool
    if (seeding === 1) return many(P, (p) => [sent(k), p]); // a seed for each step
    const seed = derive(seeding === 2 ? sent(0) : derive(runSeed, r), k); // for the round, or for the run
    return many(P, (p) => [seed, p]);
  }

  // What an entry says of round r. Nothing is made of a record before it is known to have as many bytes as it says.
  function entryOf(entry, runSeed, r, M, admit) {
    const what = `entry of round ${r} must be one that can be read`, read = reader(entry, `${what}: it`);
    const check = (holds, name, rule, value) => must(holds, `${what}: ${name}`, rule, value);
    const sampled = read.u32(), answered = read.u32(), flags = read.u8(), digest = hex(read.bytes(16));
    const numbers = (count) => { // of clients
      const found = read.bytes(4 * count), view = new DataView(found.buffer, found.byteOffset, found.length);
      return Uint32Array.from({ length: count }, (_, n) => view.getUint32(4 * n, true));
    };
    const once = (sorted) => sorted.every((one, n) => n === 0 || one !== sorted[n - 1]);
    const among = (few, all) => { // both are sorted
      let n = 0;
      return few.every((one) => {
        while (n < all.length && all[n] < one) n++;
        return all[n] === one;
      });
    };
    const asked = numbers(sampled), came = numbers(answered), held = numbers(flags & 1 ? sampled : 0);
    const examples = numbers(flags & 4 ? answered : 0);
    asked.sort();
    came.sort();
    check(sampled > 0 && once(asked) && asked[sampled - 1] < M, "sampled clients", `be some of 0..${M - 1}, each once`, "others");
    check(answered > 0 && once(came) && among(came, asked), "clients that answered", "be some of those, each once", "others");
    check(held.every((round) => round <= r), "rounds held", `be at most ${r}`, "others");
    check(examples.every((n) => n > 0), "numbers of examples", "be at least 1", 0);
    const frame = [read.u16(), read.u8(), read.u8()], length = read.u32(), sum = read.u32(), body = reader(read.rest(), `${what}: it`);
    if (`${frame}` !== `${[0x4344, 2, 4]}`) refuse(`${what}: it is damaged`);
    if (length !== body.rest().length) refuse(`${what}: it ends too early, or too late`);
    if (sum !== crc32(body.rest())) refuse(`${what}: it is damaged`);
    const records = body.u32(), round = body.u32(), eta = body.f64(), K = body.u16(), P = body.u16(), count = K * P;
    const which = body.u8(), stream = body.u8(), form = body.u8(), seeding = form & 127, signs = form >> 7;
    const distribution = ["gaussian", "sphere", "rademacher"][which];
    check(records === 1, "records of the entry", "be 1", records);
    check(round === r, "record", `be of round ${r}`, round);
    check(eta > 0 && eta < Infinity, "eta of the message", "be a finite number above 0", eta);
    const found = { round, K, P, distribution: which, "stream version": stream, seeding };
    for (const [name, , , least, most, , , words] of LOG_RULES.record) {
      const hint = name === "distribution" && which === LOW_RANK ? `, ${NO_LOW_RANK}` : "", value = found[name];
      check(value >= Number(least) && value <= Number(most), `${name} of the message`, words + hint, value);
    }
    check(count <= MOST_SCALARS, "K·P", `be at most ${MOST_SCALARS}, which fit into a reply`, count);
    admit(count);
    const size = [8 * count, 8 * K, 8, 0, 2 * count][seeding], sent = signs ? Math.ceil(count / 8) : 4 * count;
    const have = body.rest().length, whole = () => check(have === size + sent, "seeds and scalars", `have ${size + sent} bytes`, have);
    if (have < size + sent) whole();
    const seeds = body.bytes(size), given = new Uint8Array(body.bytes(sent)), scalars = new Float32Array(count);
    if (signs) scalars.forEach((_, n) => (scalars[n] = (given[n >> 3] >> (n & 7)) & 1 ? 1 : -1));
    else scalars.set(new Float32Array(given.buffer));
    check(!signs || !(count & 7) || !(given[sent - 1] >> (count & 7)), "bits after the signs of the records message", "be 0", "others");
    whole();
    check(scalars.every(Number.isFinite), "scalars of the round", "be finite", "others");
    const streams = (k) => streamsOf(seeds, seeding, runSeed, r, k, P);
    return { round: r, sampled, answered, digest: flags & 2 ? digest : null, eta, K, P, distribution, scalars, streams };
  }

  // What the page takes on, so that no log fills the memory of a browser or keeps it busy for hours. Each number is
  // multiplied with each element of a direction and added: a core does some 25 million of these steps a second.
  const PAGE = {
    bytes: 16e6, "bytes of header": 1e6, parameters: 4e6, rounds: 2e4, numbers: 4e6, "steps (numbers × parameters)": 1e11,
  };

  // Refuses what is above its limit, where there is one.
  function within(limits, what, value) {
    const most = limits[what] ?? Infinity, said = (n) => n.toLocaleString("en");
    if (value > most) refuse(`this file has ${said(value)} ${what}, and the page takes at most ${said(most)}: decomfl replay takes more`);
  }

  // All that is in a log; an Error says what is wrong with the file. It tells at times how many bytes it has read.
  function readLog(bytes, limits = {}, tell = () => {}) {
    within(limits, "bytes", bytes.length);
    // Whether the chain value at the end is not that of the bytes before it.
    const broken = (from, to) => hex(blake2b(bytes.subarray(from, to - 16), 16)) !== hex(bytes.subarray(to - 16, to));
    const u32 = (at) => reader(bytes.subarray(at), "the file").u32();
    const magic = hex(bytes.subarray(0, 8)), version = bytes.length < 16 ? 0 : u32(8);
    if (magic !== "8944434c4f470d0a") refuse("this is no log of a run: it begins in another way");
    if (version === 3) refuse("this log has parameters in groups (version 3), which are not known here: decomfl replay rebuilds it");
    if (version !== 2) refuse(`this log has version ${version}: only those of version 2 say how x_0 is made`);
    within(limits, "bytes of header", Math.min(u32(12), bytes.length));
    const [header, raw] = parsed(bytes.subarray(16, 16 + u32(12))), packed = header?.start?.bytes, rounds = [];
    let start = 32 + u32(12) + (Number.isInteger(packed) && packed > 0 ? packed : 0); // x_0 itself may stand after it
    if (broken(0, start)) refuse("the header of this log was changed or cut");
    checkHeader(isTable(raw) ? raw : {});
    const { config } = header, seed = BigInt(header.run_seed);
    let numbers = 0;
    within(limits, "parameters", header.d);
    must("rounds" in config && "clients" in config, "config", "have rounds and clients", config);
    while (start < bytes.length) {
      const whole = start + 12 <= bytes.length && crc32(bytes.subarray(start, start + 8)) === u32(start + 8);
      const stop = whole ? start + 28 + u32(start + 4) : bytes.length, r = rounds.length;
      if (!whole || stop > bytes.length || u32(start) !== r || broken(start - 16, stop)) {
        const blank = bytes.subarray(whole ? stop - 16 : start).every((byte) => byte === 0);
        if (start + 12 > bytes.length || stop > bytes.length || (stop === bytes.length && blank)) break;
        refuse(`the entry of round ${r} was changed or moved`);
      }
      const content = bytes.subarray(start + 12, stop - 16);
      const admit = (count) => {
        const twice = config.distribution === "sphere" ? 2 : 1; // their lengths are measured first
        within(limits, "rounds", r + 1);
        within(limits, "numbers", (numbers += count));
        within(limits, "steps (numbers × parameters)", twice * numbers * header.d);
      };
      rounds.push({ ...entryOf(content, seed, r, config.clients, admit), bytes: stop - start });
      start = stop;
      tell(start);
    }
    return { header, rounds, bytes: bytes.length, cut: bytes.length - start };
  }

  // 5. Update rules on a tile: x, the optimizer's vectors, and noise(v, factor), which adds factor/P sum of g_p z_p. -
  function scale(r, a) {
    for (let j = 0; j < r.length; j++) r[j] = f(f(a) * r[j]);
  }

  function addTo(r, s, a) {
    for (let j = 0; j < r.length; j++) r[j] = f(r[j] + f(f(a) * s[j]));
  }

  function sgd(x, noise, eta, { decay }) {
    if (decay) scale(x, 1 - eta * decay);
    noise(x, -eta);
  }

  function momentum(x, noise, eta, { beta, weight, decay }, m) {
    scale(m, beta);
    if (decay) addTo(m, x, weight * decay);
    noise(m, weight);
    addTo(x, m, -eta);
  }

  function sign(x, noise, eta, { decay }) {
    const u = noise(new Float32Array(TILE), 1);
    if (decay) scale(x, 1 - eta * decay);
    addTo(x, u.map((one) => (one > 0 ? 1 : one < 0 ? -1 : 0)), -eta);
  }

  function adamm(x, noise, eta, { beta, beta2, epsilon, decay }, m, v, most) {
    const u = noise(new Float32Array(TILE), 1);
    scale(m, beta);
    addTo(m, u, 1 - beta);
    scale(v, beta2);
    addTo(v, u.map((one) => one * one), 1 - beta2);
    most.forEach((one, j) => (most[j] = one > v[j] ? one : v[j]));
    if (decay) scale(x, 1 - eta * decay);
    addTo(x, most.map((one, j) => m[j] / f(f(Math.sqrt(one)) + f(epsilon))), -eta);
  }

  // And their vectors.
  const RULES = new Map(Object.entries({ sgd: [sgd, 0], momentum: [momentum, 1], sign: [sign, 0], adamm: [adamm, 3] }));

  function ruleOf(config) {
    const { method, rule = "sgd", precision = "float32", grid = 0, momentum: beta = 0, weight_decay: decay = 0 } = config;
    const { momentum_form: form = "torch", beta2 = 0, epsilon = 1 } = config;
    const name = rule === "sgd" && beta ? "momentum" : rule, known = ["decomfl", "decomfl-projection", "feedsign"];
    if (!known.includes(method)) refuse(`this reader does not know the method ${shown(method)}`);
    if (!RULES.has(name)) refuse(`this reader does not know the update rule ${shown(rule)}`);
    if (precision !== "float32" || grid) refuse("this reader does not know models in 16 bits or on a grid");
    return [...RULES.get(name), { beta, weight: form === "paper" ? 1 - beta : 1, decay, beta2, epsilon }];
  }

  // 6. Replay. --------------------------------------------------------------------------------------------------------
  // Elements first, ..., end - 1 of x and of the optimizer's vectors; first is a multiple of 128.
  function partOf({ header, rounds }, first = 0, end = header.d) {
    const { config, d } = header, [rule, slots, numbers] = ruleOf(config), x = startOf(header, first, end);
    const vectors = [x, ...many(slots, () => new Float32Array(x.length))], z = new Float32Array(TILE);
    const key = config.private_seeds ? derive(BigInt(config.seed), 11) : null;

    function take({ eta, P, distribution, scalars, streams }, k) {
      const makers = streams(k).map(([s, p]) => direction(distribution, key === null ? s : derive(key, s), p, d));
      for (let at = 0; at < x.length; at += TILE) {
        const [to, ...others] = vectors.map((vector) => vector.subarray(at, at + TILE));
        const noise = (v, factor) => {
          makers.forEach((make, p) => {
            make(z, (first + at) / TILE);
            const c = f((factor / P) * scalars[k * P + p]);
            for (let j = 0; j < v.length; j++) v[j] = f(v[j] + f(c * z[j]));
          });
          return v;
        };
        rule(to, noise, eta, numbers, ...others);
      }
    }

    // Applies the records of rounds from, ..., to - 1.
    function advance(from, to) {
      for (const record of rounds.slice(from, to)) for (let k = 0; k < record.K; k++) take(record, k);
    }
    return { vectors, advance };
  }

  // What decomfl replay says at its end, of the digests that were compared, that of x_0 first, and of what none is of.
  function closing({ header, rounds: { length } }, compared) {
    const wrong = compared.findIndex(({ recorded, found }) => recorded !== found), planned = header.config.rounds;
    if (wrong === 0) {
      return "the model does NOT agree: x_0 is not the run's (another model; or torch drew it, as before version 2 of " +
        "the log, and draws other numbers on this processor), so no record was applied";
    }
    if (wrong > 0) {
      return `the model does NOT agree: after ${compared[wrong].round} rounds its bits are not those that the log has a ` +
        `digest of, as they were after ${compared[wrong - 1].round}`;
    }
    const digests = compared.length - 1, at = compared[digests].round, exact = at === length ? ", bit for bit" : "";
    const rest = at === length ? "" : `; rounds ${at + 1} to ${length} have no digest, so they are not checked`;
    const less = length < planned ? `; the log ends before the ${planned} rounds that the run was to have` : "";
    return `the model after ${length} of ${length} rounds is rebuilt${exact}: x_0 and ${digests} digest` +
      `${digests === 1 ? "" : "s"} of the log agree, the last after round ${at}${rest}${less}`;
  }

  const digestOf = (vectors) => hex(blake2b(joined(vectors.map(bytesOf)), 16));
  const source = `globalThis.decomfl = (${library})();`;
  return { PAGE, blake2b, closing, crc32, derive, digestOf, direction, hex, partOf, readLog, source, startOf, within };
})();
