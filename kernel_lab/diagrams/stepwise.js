// Steps through the memory accesses of kernels. A figure shows one run, or several side by side at
// the same number of steps. Each buffer is a grid of its elements. The elements touched at
// the slider's step are drawn in full colour; those of earlier steps fade. A run may have a cache:
// cached lines are tinted, and misses are counted. All numbers come with the page
// (diagrams/steps.py).
(() => {
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text()).map(deep);
}

// Turns differences from the last step of the same site back into absolute numbers.
function deep(run) {
  const last = new Map();
  const [steps, values] = [[], []];
  for (let at = 0; at < run.steps.length;) {
    const site = run.steps[at++];
    const before = last.get(site) || [];
    const next = (place) => (before[place] || 0) + run.steps[at++];
    const now = [next(0), next(1)];
    const loops = run.sites[site][3].length;
    for (let place = 2; place < 2 + loops + now[1]; place++) now.push(next(place));
    last.set(site, now);
    steps.push([site, now[0], ...now.slice(2 + loops)]);
    values.push(now.slice(2, 2 + loops));
  }
  const misses = [];
  for (let at = 0; at < run.misses.length; at += 3) {
    const before = misses.at(-1) || [0, 0, 0];
    misses.push(before.map((value, place) => value + run.misses[at + place]));
  }
  return { ...run, steps, values, misses, held: new Set(), seen: 0 };
}

// The elements of a step, which lists a site, a number of accesses, then runs of neighbours.
function fill(pen, grid, step, gap) {
  const size = Math.max(0.5, grid.cell - gap);
  for (let at = 2; at < step.length; at += 2) {
    for (let element = step[at]; element < step[at] + step[at + 1]; element++) {
      pen.fillRect(grid.x + (element % grid.width) * grid.cell,
        grid.y + Math.floor(element / grid.width) * grid.cell, size, size);
    }
  }
}

// Updates the cached lines for one step. `seen` counts the misses so far.
function follow(run, now) {
  if (run.seen > 0 && run.misses[run.seen - 1][0] > now) [run.seen, run.held] = [0, new Set()];
  while (run.seen < run.misses.length && run.misses[run.seen][0] <= now) {
    const [, line, thrown] = run.misses[run.seen++];
    run.held.delete(thrown);
    run.held.add(line);
  }
}

function tintCache(run, pen) {
  pen.globalAlpha = 0.28;
  for (const line of run.held) {
    for (const grid of run.buffers) {
      const first = Math.floor((line * run.line - grid.base) / grid.itemsize);
      const end = Math.min(first + Math.floor(run.line / grid.itemsize), grid.size);
      const start = Math.max(0, first);
      if (grid.scope !== "global" || start >= end) continue;
      pen.fillStyle = grid.colour;
      fill(pen, grid, [0, 0, start, end - start], 0);
    }
  }
}

function draw(run, canvas, now, room, colour) {
  const across = canvas.clientWidth || room;
  const [ratio, scale] = [window.devicePixelRatio || 1, across / room];
  const top = Math.max(0, 16 / scale - 20); // names keep their size in a small picture
  const height = top + 2 +
    Math.max(...run.buffers.map((grid) => grid.y + grid.rows * grid.cell));
  canvas.width = Math.round(across * ratio);
  canvas.height = Math.round(height * scale * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio * scale, ratio * scale);
  pen.translate(0, top);
  pen.font = 12 / scale + "px sans-serif";
  for (const grid of run.buffers) {
    pen.globalAlpha = 1;
    pen.fillStyle = grid.colour;
    pen.fillRect(grid.x, grid.y - 5 - 9 / scale, 9 / scale, 9 / scale);
    pen.fillStyle = colour;
    pen.fillText(grid.name + (grid.scope === "global" ? "" : " (" + grid.scope + ")"),
      grid.x + 13 / scale, grid.y - 5);
    pen.globalAlpha = 0.12;
    pen.fillRect(grid.x, grid.y, grid.width * grid.cell, grid.rows * grid.cell);
  }
  tintCache(run, pen);
  const trail = Math.max(48, Math.round(run.steps.length / 200));
  for (let step = Math.max(0, now - trail); step <= now; step++) {
    const [buffer, isStore] = run.sites[run.steps[step][0]];
    const grid = run.buffers[buffer];
    pen.globalAlpha = step === now ? 1 : 0.6 * (1 - (now - step) / (trail + 1));
    pen.fillStyle = isStore ? run.store : grid.colour;
    fill(pen, grid, run.steps[step], grid.cell * scale > 4 ? 1 / scale : 0);
  }
}

// An element with text or other elements in it.
function made(kind, ...parts) {
  const element = document.createElement(kind);
  element.append(...parts);
  return element;
}

const counted = (number) => number.toLocaleString("en");

// The lines of text about a step; diagrams/stepwise.py writes the same for the still picture.
function said(run, now) {
  const [site, accesses] = run.steps[now];
  const [, isStore, text, around] = run.sites[site];
  const many = accesses > 1 ? ", " + counted(accesses) + " accesses" : "";
  const lines = [
    made("span", "step " + counted(now + 1) + " of " + counted(run.steps.length)),
    made("span", made("code", (isStore ? "store " : "load ") + text), many),
  ];
  if (run.cache) {
    const misses = counted(run.seen) + (run.seen === 1 ? " miss" : " misses");
    lines.unshift(made("span", made("b", misses)));
  }
  if (run.loops.length) {
    const named = around.map((loop, place) => made("i",
      run.loops[loop][0] + "=" + run.values[now][place], made("s", "/" + run.loops[loop][1])));
    lines.push(made("span", ...(named.length ? named.flatMap((one) => [one, " "]) : ["no loop"])));
  }
  return lines;
}

function activate(figure, runs) {
  const [button, slider, pace] = ["button", "input[type=range]", "input[type=checkbox]"].map(
    (name) => figure.querySelector(name));
  const canvases = [...figure.querySelectorAll("canvas")];
  const outputs = [...figure.querySelectorAll("output")];
  const room = Number(figure.dataset.room);
  const last = Number(slider.max);
  figure.classList.add("live");
  const show = () => {
    const { color } = getComputedStyle(figure);
    runs.forEach((run, number) => {
      const end = run.steps.length - 1;
      const share = last ? Number(slider.value) / last : 1;
      const now = pace && pace.checked ? Math.round(share * end)
        : Math.min(Number(slider.value), end);
      follow(run, now);
      draw(run, canvases[number], now, room, color);
      outputs[number].replaceChildren(...said(run, now));
    });
  };

  let timer = null;
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
    const now = Number(slider.value);
    const many = event.shiftKey ? stride : 1;
    const places = {
      ArrowRight: now + many, ArrowLeft: now - many, Home: 0, End: last,
    };
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key in places) go(places[event.key]);
    else if (event.key === " " && event.target !== button && event.target !== pace) toggle();
    else return;
    event.preventDefault();
  });
  slider.addEventListener("input", show);
  if (pace) pace.addEventListener("change", show);
  // Draw again when the colours change (the system's setting or a switch on the page) or the width
  // (the window is resized or a folded part is opened).
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  new MutationObserver(show).observe(document.body, { attributes: true });
  let width = 0;
  new ResizeObserver(() => {
    if (width !== figure.clientWidth) show();
    width = figure.clientWidth;
  }).observe(figure);
  show();
}

for (const figure of document.querySelectorAll("figure.stepper")) {
  unpacked(figure.querySelector("script").textContent).then((runs) => activate(figure, runs));
}
})();
