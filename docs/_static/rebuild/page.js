// The page: it has a worker read a log and others replay it, shows the model of any round, and lets it read a digit.
"use strict";

const { PAGE, closing, source, within } = globalThis.decomfl;
const $ = (id) => document.getElementById(id);
const PIXELS = 28, MEAN = 0.1307, STD = 0.3081; // of MNIST's pixels, as they were in training
const STOPS = 300; // places of the slider, at most and without those of digests: each keeps a model
const CANCELLED = new Error("it was cancelled");
const HINT = "drag: the model after so many rounds";

// reached: how many of the slider's stops are there; wanted: the one that was asked for, Infinity for the last there is;
// shown: the one that is looked at; kept, found: x and digest by round.
const state = { log: null, bytes: null, table: null, images: 0, pixels: null, job: null };

// -- Numbers as people read them -----------------------------------------------------------------------------------
const count = (n) => n.toLocaleString("en");
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

// A message that begins with the symbol x_0 keeps the small letter: X_0 would be another symbol.
const sentence = (text) => `${text.startsWith("x_0") ? text : text[0].toUpperCase() + text.slice(1)}.`;

// What a file says in a word or a number.
const said = (value) => (typeof value === "object" ? "?" : `${value}`.slice(0, 60));

function size(bytes) {
  const [scale, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([least]) => bytes >= least) ?? [1, "bytes"];
  const value = bytes / scale;
  return `${value < 10 && scale > 1 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

function bold(text) {
  const made = document.createElement("b");
  made.textContent = text;
  return made;
}

function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = !text;
  if (text) $("trouble").scrollIntoView({ block: "nearest" });
}

function verdict(text, kind = "") {
  $("verdict").textContent = text;
  $("verdict").className = kind;
}

// -- 1. Work: workers, with a bar and a button that ends them ---------------------------------------------------------
// A worker that is asked one thing after another. Its script is made of text: from the disk no file may be one.
function hand(tell) {
  const script = `${source}\n(${globalThis.decomflWork.install})(${globalThis.decomflWork});`;
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const worker = new Worker(address), waiting = [];
  URL.revokeObjectURL(address);
  worker.onmessage = ({ data }) => {
    if ("at" in data) return tell(data.at);
    const [resolve, reject] = waiting.shift();
    return "refused" in data ? reject(new Error(data.refused)) : resolve(data);
  };
  const end = (why) => {
    worker.terminate();
    waiting.splice(0).forEach(([, reject]) => reject(why));
  };
  worker.onerror = (event) => {
    event.preventDefault();
    end(new Error("this browser lets the page have no worker, or the worker ended"));
  };
  const ask = (question, moved = []) => new Promise((...both) => {
    waiting.push(both);
    worker.postMessage(question, moved);
  });
  return { ask, end };
}

// Begins some work, in place of what was being done.
function begin(what) {
  state.job?.end();
  const hands = [], began = performance.now();
  let share = 0;
  const seconds = () => (performance.now() - began) / 1000;
  const tell = (done) => {
    share = done;
    $("progress").value = done;
    const rest = seconds() > 2 && share > 0.02 ? `, about ${Math.ceil((seconds() * (1 - share)) / share)} s left` : "";
    $("time").textContent = `${what}: ${seconds().toFixed(0)} s${rest}`;
  };
  const clock = setInterval(() => tell(share), 500);
  const job = {
    tell,
    seconds,
    hand() {
      hands.push(hand(tell));
      return hands.at(-1);
    },
    end() {
      clearInterval(clock);
      hands.forEach((each) => each.end(CANCELLED));
      if (state.job !== job) return;
      state.job = null;
      $("work").hidden = true;
      $("start").disabled = false;
    },
  };
  state.job = job;
  $("work").hidden = false;
  $("start").disabled = true;
  tell(0);
  return job;
}

// -- 2. The file -----------------------------------------------------------------------------------------------------
async function take(bytes, name, table, images) {
  const job = begin("reading");
  try {
    const { log } = await job.hand().ask({ ask: "read", bytes, limits: PAGE });
    Object.assign(state, { log, bytes, table, images, stops: stopsOf(log.rounds) });
    forget();
    introduce(name);
  } finally {
    job.end();
  }
}

// Forgets every model that was rebuilt.
function forget() {
  Object.assign(state, { reached: 0, shown: 0, wanted: Infinity, kept: new Map(), found: new Map() });
}

// Where the slider stops, and where x is needed for a digest.
function stopsOf(rounds) {
  const often = Math.max(1, Math.ceil(rounds.length / STOPS)), numbers = rounds.map((_, r) => r + 1);
  const digests = numbers.filter((r) => rounds[r - 1].digest), few = digests.length <= STOPS;
  const shown = numbers.filter((r) => r % often === 0 || r === rounds.length || (few && rounds[r - 1].digest));
  return { shown: [0, ...shown], every: [...new Set([0, ...shown, ...digests])].sort((a, b) => a - b) };
}

const digestAt = (r) => (r ? state.log.rounds[r - 1].digest : state.log.header.x0);

function introduce(name) {
  const { header: { d, config }, rounds, numbers, bytes, cut } = state.log;
  const model = 4 * d, most = Math.max(model, bytes), digests = rounds.filter(({ digest }) => digest).length;
  const bar = (id, share) => $(id).style.setProperty("--share", Math.max(share, 0.005));
  const { K, P } = rounds[0] ?? { K: 0, P: 0 };
  $("name").textContent = name;
  $("about").textContent =
    `A run of ${said(config.method)}: ${said(config.model)}, ${said(config.data)}, d = ${plural(d, "parameter")}. ` +
    `${plural(rounds.length, "round")}, ${said(config.sampled ?? 1)} of ${said(config.clients ?? 1)} clients in each, ` +
    `K = ${plural(K, "step")}, P = ${plural(P, "direction")}. It can be checked at the start and after ${plural(digests, "round")}.`;
  $("model-size").textContent = size(model);
  $("log-size").textContent = size(bytes);
  bar("model-bar", model / most);
  bar("log-bar", bytes / most);
  bar("scalar-bar", (4 * numbers) / bytes);
  $("lede").replaceChildren(
    "A model of ",
    bold(`${count(d)} parameters`),
    ` is ${size(model)} of weights. The file on this page has none of them: it is the log of a training run of `,
    `${count(rounds.length)} rounds, `,
    bold(`${count(bytes)} bytes`),
    ". From it your browser rebuilds the model ",
    rounds.length < config.rounds ? `after ${plural(rounds.length, "round")} of ${count(config.rounds)}` : "that was trained",
    ", with exactly the same bits.",
  );
  $("inside").textContent =
    `Dark green: the ${count(numbers)} numbers that clients measured. Light green: who took part, and a checksum for ` +
    `each round. Sending all weights both ways would be ` +
    `${size((2 * model * rounds.length * (config.sampled ?? 1)) / (config.clients ?? 1))} a client.`;
  trouble(cut ? `The last ${count(cut)} bytes are a round that was not written whole. They are left out.` : "");
  $("start").textContent = "Rebuild the model";
  $("hint").textContent = HINT;
  verdict("All bits of the model go into a digest. Equal digests mean equal models.");
  $("draw").hidden = !(config.model === "cnn-mnist" && d === 28938);
  $("slider").max = state.stops.shown.length - 1;
  $("ticks").replaceChildren();
  state.stops.shown.forEach((r, n) => {
    const x = `${(100 * n) / Math.max(state.stops.shown.length - 1, 1)}%`;
    if (digestAt(r)) element("ticks", "line", { x1: x, x2: x, y1: 0, y2: 8 });
  });
  paint();
}

// The rounds and accuracies of a run's metrics.csv, at most a thousand of them.
function tableOf(text) {
  const [head, ...rows] = text.trim().split("\n").map((line) => line.trim().split(","));
  const round = head.indexOf("round"), accuracy = head.indexOf("test_accuracy");
  if (round < 0 || accuracy < 0) throw new Error("this table has no columns round and test_accuracy");
  const found = rows.map((row) => [row[round], row[accuracy]].map((one) => (one ? Number(one) : NaN)));
  const sound = found.filter(([r, share]) => r >= 0 && share >= 0 && share <= 1);
  return sound.filter((_, n) => n % Math.ceil(sound.length / 1000) === 0 || n === sound.length - 1);
}

async function contentOf(file) {
  within(PAGE, "bytes", file.size);
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} cannot be read: is it a folder?`);
  }
}

async function open(files) {
  trouble("");
  try {
    const [table] = files.filter(({ name }) => name.endsWith(".csv")), [log] = files.filter((file) => file !== table);
    if (!table && !log) throw new Error("this is no file");
    const rows = table ? tableOf(new TextDecoder().decode(await contentOf(table))) : null;
    if (log) {
      await take(await contentOf(log), log.name, rows, 0);
      await replay();
    } else {
      Object.assign(state, { table: rows, images: 0 });
      paint();
    }
  } catch (error) {
    const hint = error.message.startsWith("this is no log") ? " A log is the file run.dcl in the folder of a run." : "";
    trouble(`${files[0]?.name ?? "no file"}: ${sentence(error.message)}${hint} Still showing ${$("name").textContent}.`);
  }
}

// -- 3. The replay ---------------------------------------------------------------------------------------------------
// Workers replay a part of the elements each, one stop after another; another one makes the digests.
async function replay() {
  forget();
  $("hint").textContent = HINT;
  const { log, bytes, stops: { shown, every } } = state, { d, config } = log.header, last = log.rounds.length;
  const tiles = Math.ceil(d / 128), parts = Math.min(navigator.hardwareConcurrency || 2, bytes.length > 2 ** 20 ? 4 : 8, tiles);
  const edges = Array.from({ length: parts + 1 }, (_, n) => Math.min(128 * Math.round((n * tiles) / parts), d));
  const compared = []; // the digests of the log beside those found
  const reads = !$("draw").hidden, places = new Set(shown);
  const job = begin("rebuilding");
  verdict("All bits of the model go into a digest. Equal digests mean equal models.");
  try {
    const hands = edges.slice(1).map(() => job.hand()), checker = job.hand();
    await Promise.all(hands.map((each, n) => each.ask({ ask: "begin", bytes, limits: PAGE, first: edges[n], end: edges[n + 1] })));
    const whole = (to) => {
      const count = digestAt(to) ? 9 : reads ? 1 : 0; // of vectors: all, x, or none
      const asked = Promise.all(hands.map((each) => each.ask({ ask: "advance", to, count })));
      asked.catch(() => {}); // it is waited for later, or not at all
      return asked;
    };
    let next = whole(0);
    for (const [n, at] of every.entries()) {
      const answers = await next;
      if (n + 1 < every.length) next = whole(every[n + 1]); // while this one is looked at
      const vectors = answers[0].vectors.map((_, v) => join(answers.map((answer) => answer.vectors[v])));
      if (reads && places.has(at)) state.kept.set(at, vectors[0]);
      if (digestAt(at)) {
        const { found } = await checker.ask({ ask: "digest", vectors });
        compared.push({ round: at, recorded: digestAt(at), found });
        state.found.set(at, found);
        if (found !== digestAt(at)) verdict(sentence(closing(log, compared)), "bad");
      }
      if (places.has(at)) {
        state.reached++;
        state.shown = Math.min(state.wanted, state.reached - 1);
      }
      job.tell(last ? at / last : 1);
      soon();
      if (at === 0 && $("verdict").className) break; // no record is applied to another x_0
    }
    const good = compared.at(-1).round === last && last >= config.rounds ? "good" : "partly";
    $("start").textContent = "Rebuild it again";
    $("hint").textContent = `rebuilt in ${job.seconds().toFixed(1)} s: drag to look back`;
    paint();
    if (!$("verdict").className) verdict(sentence(closing(log, compared)), good);
  } catch (error) {
    if (state.job && state.job !== job) return; // other work has taken its place
    if (error !== CANCELLED) trouble(sentence(error.message));
    else $("hint").textContent = "cancelled: the rounds before can be looked at";
  } finally {
    job.end();
  }
}

function join(parts) {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole;
}

// -- 4. The round that is looked at ----------------------------------------------------------------------------------
// Draws all that hangs on it, once before the screen is drawn again.
function soon() {
  if (!state.waits) requestAnimationFrame(paint);
  state.waits = true;
}

function paint() {
  state.waits = false;
  if (!state.log) return;
  const at = state.stops.shown[state.shown], end = state.log.rounds.length;
  $("slider").value = state.shown;
  $("round").textContent = `${count(at)} of ${count(end)} rounds`;
  $("slider").setAttribute("aria-valuetext", $("round").textContent);
  compare(at);
  drawScalars(at);
  drawCurve(at);
  classify();
}

// The digests of a round, and what they say.
function compare(at) {
  const recorded = digestAt(at), found = state.found.get(at);
  const before = [...state.found.keys()].filter((r) => r < at).pop();
  const same = (r) => state.found.get(r) === digestAt(r);
  $("recorded").textContent = !state.reached ? "–" : recorded ?? "none of this round";
  $("found").textContent = found ?? "–";
  $("check").className = found ? (same(at) ? "note good" : "note bad") : "note";
  $("check").textContent = "";
  if (found) $("check").textContent = `Round ${count(at)}: ${same(at) ? "equal digests, so the same bits" : "the digests differ"}.`;
  else if (before !== undefined) {
    $("check").textContent = `The log has no digest of round ${count(at)}. That of round ${count(before)} ${same(before) ? "agrees" : "differs"}.`;
  }
}

// The numbers of the round that is reached, as bars: at most 40 of them.
function drawScalars(at) {
  const r = Math.max(at, 1), { K, P, scalars, answered } = state.log.rounds[r - 1] ?? { K: 0, P: 0, scalars: [] };
  const numbers = [...scalars.slice(0, 40)], most = Math.max(...numbers.map(Math.abs)) || 1;
  const shown = K * P > 40 ? `40 of the ${count(K * P)}` : `The ${K * P}`;
  $("scalars").replaceChildren();
  $("scalars-caption").textContent = K ? `${shown} numbers of round ${count(r)}: means over ${answered} clients.` : "";
  numbers.forEach((value, n) => {
    const x = `${(100 * (n + 0.5)) / numbers.length}%`;
    element("scalars", "line", { class: "bar", x1: x, x2: x, y1: 32, y2: 32 - (30 * value) / most });
  });
}

// The recorded accuracies up to a round.
function drawCurve(at) {
  const { log, table, images } = state, end = Math.max(log.rounds.length, 1);
  const [left, right, top, bottom] = [54, ($("curve").parentNode.clientWidth || 600) - 10, 12, 192];
  const x = (r) => left + ((right - left) * r) / end, y = (share) => bottom - (bottom - top) * share;
  $("curve").replaceChildren();
  $("curve").style.display = table ? "" : "none";
  $("curve-caption").textContent = !table
    ? "There is no accuracy curve: a log has no accuracies. Open the run's metrics.csv to see them."
    : `Accuracy${images ? ` on the ${count(images)} test images of MNIST` : ""}, as the run's own table has it: ` +
      "it was measured in training, and this page has no test images.";
  if (!table) return;
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    element("curve", "line", { class: "grid", x1: left, x2: right, y1: y(share), y2: y(share) });
    element("curve", "text", { x: left - 8, y: y(share) + 5, "text-anchor": "end" }).textContent = `${100 * share} %`;
  }
  element("curve", "text", { x: left, y: bottom + 24 }).textContent = "round 0";
  element("curve", "text", { x: right, y: bottom + 24, "text-anchor": "end" }).textContent = count(end);
  const reached = table.filter(([round]) => round <= at);
  if (!reached.length) return;
  element("curve", "polyline", { class: "line", points: reached.map(([r, share]) => `${x(r)},${y(share)}`).join(" ") });
  const [round, share] = reached[reached.length - 1], late = round > 0.8 * end;
  element("curve", "circle", { class: "dot", cx: x(round), cy: y(share), r: 6 });
  const side = { x: x(round) + (late ? 0 : 10), "text-anchor": late ? "end" : "start" };
  const place = { class: "now", y: y(share) + 28, ...side };
  element("curve", "text", place).textContent = `${(100 * share).toFixed(1)} %`;
}

function element(picture, name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  $(picture).append(made);
  return made;
}

// -- 5. Drawing and reading ------------------------------------------------------------------------------------------
const pen = $("paper").getContext("2d", { willReadFrequently: true });
let from = null;

function place({ clientX, clientY }) {
  const box = $("paper").getBoundingClientRect();
  return [((clientX - box.left) * 280) / box.width, ((clientY - box.top) * 280) / box.height];
}

function stroke(points) {
  Object.assign(pen, { lineWidth: 22, lineCap: "round", lineJoin: "round", strokeStyle: "#fff" });
  pen.beginPath();
  points.forEach(([x, y]) => pen.lineTo(x, y));
  if (points.length === 1) pen.lineTo(points[0][0] + 0.1, points[0][1]);
  pen.stroke();
}

function clear() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, 280, 280);
  drawn();
}

// Digits of our own, as lines in a square of 100.
const SAMPLES = [
  ["50,12 32,18 24,40 24,62 32,82 50,88 68,82 76,62 76,40 68,18 50,12"],
  ["36,26 54,12 54,88"],
  ["28,30 36,16 54,12 68,20 70,36 58,54 40,70 26,86 76,86"],
  ["28,20 48,12 66,18 68,34 56,46 42,48", "42,48 60,50 72,64 66,80 48,88 28,82"],
  ["60,12 26,62 78,62", "62,40 62,90"],
  ["70,14 36,14 32,46 52,42 68,52 70,70 58,86 40,88 28,80"],
  ["62,12 42,30 30,54 28,72 40,88 58,88 70,74 66,58 50,52 34,60"],
  ["26,16 74,16 56,48 44,88"],
  ["50,48 34,38 32,22 50,12 68,22 66,38 50,48 30,62 30,78 50,88 70,78 70,62 50,48"],
  ["68,34 56,46 38,44 30,30 38,16 56,12 68,24 68,40 62,66 54,88"],
].map((lines) => lines.map((line) => line.split(" ").map((point) => point.split(",").map((n) => 2.8 * n))));

function sample(digit) {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, 280, 280);
  SAMPLES[digit].forEach((points) => stroke(rounded(points)));
  drawn();
}

// The same line with its corners cut, twice.
function rounded(points) {
  for (let pass = 0; pass < 2; pass++) {
    const cut = points.slice(1).flatMap(([x, y], n) => {
      const [a, b] = points[n];
      return [[0.75 * a + 0.25 * x, 0.75 * b + 0.25 * y], [0.25 * a + 0.75 * x, 0.25 * b + 0.75 * y]];
    });
    points = [points[0], ...cut, points[points.length - 1]];
  }
  return points;
}

// The drawing as MNIST has its digits: the longer side 20 pixels, the centre of mass in the middle of 28 x 28.
function image() {
  const ink = pen.getImageData(0, 0, 280, 280).data, at = (x, y) => ink[4 * (280 * y + x)] / 255;
  let [left, right, top, bottom] = [280, -1, 280, -1];
  for (let y = 0; y < 280; y++) {
    for (let x = 0; x < 280; x++) {
      if (at(x, y) < 0.1) continue;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), y];
    }
  }
  if (right < 0) return null;
  const step = Math.max(right - left + 1, bottom - top + 1) / 20;
  const small = new Float32Array(400);
  let mass = 0, middleX = 0, middleY = 0;
  for (let row = 0; row < 20; row++) {
    for (let column = 0; column < 20; column++) { // the mean of the pixels below a pixel
      const [x0, x1] = [left + step * column, left + step * (column + 1)].map(Math.round);
      const [y0, y1] = [top + step * row, top + step * (row + 1)].map(Math.round);
      let sum = 0, n = 0;
      for (let y = y0; y < Math.max(y1, y0 + 1); y++) {
        for (let x = x0; x < Math.max(x1, x0 + 1); x++, n++) sum += x <= right && y <= bottom ? at(x, y) : 0;
      }
      const value = sum / n;
      small[20 * row + column] = value;
      mass += value;
      middleX += value * column;
      middleY += value * row;
    }
  }
  const pixels = new Float32Array(PIXELS * PIXELS);
  const dx = Math.round(13.5 - middleX / mass), dy = Math.round(13.5 - middleY / mass);
  for (let row = 0; row < 20; row++) {
    for (let column = 0; column < 20; column++) {
      const x = column + dx, y = row + dy;
      if (x >= 0 && x < PIXELS && y >= 0 && y < PIXELS) pixels[PIXELS * y + x] = small[20 * row + column];
    }
  }
  return pixels;
}

// A 5 x 5 convolution with padding 2, ReLU, and the largest of each 2 x 2.
function layer(input, inputs, side, weights, biases, outputs) {
  const half = side / 2, output = new Float32Array(outputs * half * half);
  for (let o = 0; o < outputs; o++) {
    for (let y = 0; y < side; y++) {
      for (let x = 0; x < side; x++) {
        let sum = biases[o];
        for (let i = 0; i < inputs; i++) {
          for (let v = Math.max(0, 2 - y); v < Math.min(5, side + 2 - y); v++) {
            for (let u = Math.max(0, 2 - x); u < Math.min(5, side + 2 - x); u++) {
              const pixel = input[side * (side * i + y + v - 2) + x + u - 2];
              sum += pixel * weights[25 * (o * inputs + i) + 5 * v + u];
            }
          }
        }
        const place = half * half * o + half * (y >> 1) + (x >> 1);
        output[place] = Math.max(output[place], sum); // it begins at 0: that is the ReLU
      }
    }
  }
  return output;
}

// The probabilities of the ten digits.
function read(pixels, x) {
  let at = 0;
  const next = (n) => x.subarray(at, (at += n));
  const first = layer(pixels.map((value) => (value - MEAN) / STD), 1, 28, next(400), next(16), 16);
  const second = layer(first, 16, 14, next(12800), next(32), 32), weights = next(15680), biases = next(10);
  const score = (bias, c) => second.reduce((sum, value, j) => sum + value * weights[1568 * c + j], bias);
  const scores = Array.from(biases, score);
  const most = Math.max(...scores), parts = scores.map((score) => Math.exp(score - most));
  return parts.map((part) => part / parts.reduce((a, b) => a + b));
}

// The drawing is another one.
function drawn() {
  state.pixels = image();
  const view = $("seen").getContext("2d"), shown = view.createImageData(PIXELS, PIXELS);
  for (let n = 0; n < PIXELS * PIXELS; n++) {
    const grey = 255 * (state.pixels?.[n] ?? 0);
    shown.data.set([grey, grey, grey, 255], 4 * n);
  }
  view.putImageData(shown, 0, 0);
  soon();
}

// What the model of the round that is looked at reads.
function classify() {
  const at = state.stops.shown[state.shown], x = state.kept.get(at);
  const found = state.pixels && x ? read(state.pixels, x) : null;
  const best = found ? found.indexOf(Math.max(...found)) : -1;
  [...$("bars").children].forEach((bar, digit) => {
    const share = found ? found[digit] : 0;
    bar.className = digit === best ? "best" : "";
    bar.querySelector("i").style.width = `${100 * share}%`;
    bar.querySelector("em").textContent = found ? `${(100 * share).toFixed(0)} %` : "";
  });
  const reads = best >= 0 && found[best] > 0.5 ? "reads" : "guesses";
  const when = at ? `After ${plural(at, "round")} the model ${reads} ` : "At the start all weights are noise. The model guesses ";
  if (found) $("answer").replaceChildren(when, bold(`${best}`), ".");
  else $("answer").textContent = state.pixels ? "Rebuild the model: then it reads this." : "Draw a digit.";
}

// -- What people do --------------------------------------------------------------------------------------------------
for (let digit = 0; digit < 10; digit++) {
  const button = document.createElement("button"), bar = document.createElement("li");
  button.textContent = digit;
  button.setAttribute("aria-label", `Draw a ${digit} for me`);
  button.onclick = () => sample(digit);
  $("samples").append(button);
  bar.innerHTML = `${digit} <span><i></i></span><em></em>`;
  $("bars").append(bar);
}
$("paper").onpointerdown = (event) => {
  $("paper").setPointerCapture(event.pointerId);
  from = place(event);
  stroke([from]);
  drawn();
};
$("paper").onpointermove = (event) => {
  if (!from) return;
  const to = place(event);
  stroke([from, to]);
  from = to;
  drawn();
};
$("paper").onpointerup = $("paper").onpointercancel = () => (from = null);
$("clear").onclick = clear;
$("start").onclick = replay;
$("cancel").onclick = () => state.job?.end();
$("slider").oninput = ({ target }) => {
  if (!state.log) return;
  if (!state.reached && !state.job) replay(); // until the round that is asked for, and on
  state.wanted = Number(target.value);
  state.shown = Math.max(0, Math.min(state.wanted, state.reached - 1));
  soon();
};
$("files").onchange = ({ target }) => open([...target.files]).then(() => (target.value = ""));
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || document.body.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  open([...event.dataTransfer.files]);
});
addEventListener("resize", soon);

$("limits").textContent =
  `At most ${size(PAGE.bytes)}, ${count(PAGE.parameters)} parameters, ${count(PAGE.rounds)} rounds, ${count(PAGE.numbers)} numbers and an hour of work.`;
sample(3);
const { log, name, table, images } = globalThis.recorded;
take(Uint8Array.from(atob(log), (letter) => letter.charCodeAt(0)), name, table, images)
  .catch((error) => error === CANCELLED || trouble(sentence(error.message)));
