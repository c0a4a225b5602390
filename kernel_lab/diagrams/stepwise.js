// Steps through the memory accesses of kernels. A figure shows one run, or several side by side at
// the same number of steps. Each buffer is a grid of its elements; those touched at the slider's
// step are drawn full, those of the steps before it fade. A run may have a cache: the lines in it
// are outlined, and its misses are counted.
const ROOM = 1000;
const GAP = 18;
const TITLE = 20;

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Places a run's buffers from left to right in rows; returns the height that they take.
function arranged(run, cell) {
  let [x, y, low] = [0, 0, 0];
  for (const grid of run.buffers) {
    grid.rows = Math.ceil(grid.size / grid.width);
    grid.cell = Math.min(cell, ROOM / grid.width);
    const [width, height] = [grid.width * grid.cell, grid.rows * grid.cell];
    if (x > 0 && x + width > ROOM) [x, y, low] = [0, low + GAP, 0];
    [grid.x, grid.y] = [x, y + TITLE];
    x += Math.max(width, 90) + GAP;
    low = Math.max(low, y + TITLE + height);
  }
  return low;
}

// The elements of a step: after the site and the number of accesses come runs of neighbours.
function fill(pen, grid, step, size) {
  for (let at = 2; at < step.length; at += 2) {
    for (let element = step[at]; element < step[at] + step[at + 1]; element++) {
      pen.fillRect(grid.x + (element % grid.width) * grid.cell,
        grid.y + Math.floor(element / grid.width) * grid.cell, size, size);
    }
  }
}

// The lines of global memory that a step touches, in order.
function linesOf(run, step) {
  const grid = run.buffers[run.sites[step[0]][0]];
  if (grid.scope !== "global") return [];
  const found = new Set();
  for (let at = 2; at < step.length; at += 2) {
    const first = Math.floor((grid.base + step[at] * grid.itemsize) / run.line);
    const end = grid.base + (step[at] + step[at + 1]) * grid.itemsize;
    for (let line = first; line * run.line < end; line++) found.add(line);
  }
  return [...found];
}

// The misses up to each step of a least-recently-used cache. A Map keeps the order of insertion.
function countMisses(run) {
  const held = new Map();
  let misses = 0;
  run.misses = run.steps.map((step) => {
    for (const line of linesOf(run, step)) {
      if (!held.delete(line)) {
        misses++;
        if (held.size === run.cache) held.delete(held.keys().next().value);
      }
      held.set(line, true);
    }
    return misses;
  });
}

// The lines that the cache holds after a step: the last different ones that were touched.
function linesHeld(run, now) {
  const held = new Set();
  for (let step = now; step >= 0 && held.size < run.cache; step--) {
    for (const line of linesOf(run, run.steps[step]).reverse()) {
      if (held.size < run.cache) held.add(line);
    }
  }
  return held;
}

function outlineCache(run, pen, now) {
  pen.globalAlpha = 0.28;
  for (const line of linesHeld(run, now)) {
    const start = line * run.line;
    const grid = run.buffers.find((one) => one.scope === "global" && one.base <= start &&
      start < one.base + one.size * one.itemsize);
    if (!grid) continue;
    pen.fillStyle = grid.colour;
    const first = Math.floor((start - grid.base) / grid.itemsize);
    const length = Math.min(Math.floor(run.line / grid.itemsize), grid.size - first);
    fill(pen, grid, [0, 0, first, length], grid.cell);
  }
}

function draw(run, canvas, now, style) {
  const scale = window.devicePixelRatio || 1;
  const pen = canvas.getContext("2d");
  const trail = Math.max(48, Math.round(run.steps.length / 200));
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, ROOM, canvas.height);
  pen.font = "13px " + style.fontFamily;
  for (const grid of run.buffers) {
    pen.globalAlpha = 1;
    pen.fillStyle = grid.colour;
    pen.fillRect(grid.x, grid.y - 15, 9, 9);
    pen.fillStyle = style.color;
    pen.fillText(grid.name + (grid.scope === "global" ? "" : " (" + grid.scope + ")"),
      grid.x + 13, grid.y - 6);
    pen.globalAlpha = 0.12;
    pen.fillRect(grid.x, grid.y, grid.width * grid.cell, grid.rows * grid.cell);
  }
  if (run.cache) outlineCache(run, pen, now);
  for (let step = Math.max(0, now - trail); step <= now; step++) {
    const [buffer, isStore] = run.sites[run.steps[step][0]];
    const grid = run.buffers[buffer];
    pen.globalAlpha = step === now ? 1 : 0.6 * (1 - (now - step) / (trail + 1));
    pen.fillStyle = isStore ? run.store : grid.colour;
    fill(pen, grid, run.steps[step], Math.max(1, grid.cell - (grid.cell > 4 ? 1 : 0)));
  }
}

function said(run, now) {
  const [site, accesses] = run.steps[now];
  const [, isStore, text] = run.sites[site];
  return "step " + (now + 1) + " of " + run.steps.length + ": " + (isStore ? "store " : "load ") +
    text + (accesses > 1 ? ", " + accesses + " accesses" : "") +
    (run.loops[now] ? "; " + run.loops[now] : "") +
    (run.cache ? "; " + run.misses[now] + " misses" : "");
}

function activate(figure, runs) {
  const [button, slider] = ["button", "input"].map((name) => figure.querySelector(name));
  const canvases = [...figure.querySelectorAll("canvas")];
  const outputs = [...figure.querySelectorAll("output")];
  const scale = window.devicePixelRatio || 1;
  runs.forEach((run, number) => {
    if (run.cache) countMisses(run);
    let cell = 12;
    while (cell > 1 && arranged(run, cell) > 460) cell -= 0.5;
    canvases[number].width = ROOM * scale;
    canvases[number].height = (Math.ceil(arranged(run, cell)) + 2) * scale;
    canvases[number].style.width = "100%";
  });
  const show = () => {
    const style = getComputedStyle(figure);
    runs.forEach((run, number) => {
      const now = Math.min(Number(slider.value), run.steps.length - 1);
      draw(run, canvases[number], now, style);
      outputs[number].textContent = said(run, now);
    });
  };

  let timer = null;
  const last = Number(slider.max);
  const stride = Math.max(1, Math.round(last / 400)); // a run takes half a minute at most
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "play";
  };
  const go = (place) => {
    slider.value = Math.max(0, Math.min(last, place));
    show();
  };
  const toggle = () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= last) slider.value = 0;
    button.textContent = "pause";
    timer = setInterval(() => {
      if (Number(slider.value) >= last) return stop();
      go(Number(slider.value) + stride);
    }, 60);
  };
  button.addEventListener("click", toggle);
  figure.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (steps) go(Number(slider.value) + steps * (event.shiftKey ? stride : 1));
    else if (event.key === " " && event.target !== button) toggle();
    else return;
    event.preventDefault();
  });
  addEventListener("beforeprint", () => {
    stop();
    if (Number(slider.value) === 0) go(Math.round(last / 2)); // a still that shows something
  });
  slider.addEventListener("input", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

for (const figure of document.querySelectorAll("figure.stepper")) {
  unpacked(figure.querySelector("script").textContent).then((runs) => activate(figure, runs));
}
