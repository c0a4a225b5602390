// Steps through the memory accesses of a kernel: each buffer is a grid of its elements, the ones
// touched at the slider's step are drawn full, those of the steps before it fade.
for (const figure of document.querySelectorAll("figure.stepper")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const [button, slider, output, canvas] = ["button", "input", "output", "canvas"].map((name) =>
    figure.querySelector(name));
  const TRAIL = 48;
  const GAP = 18;
  const TITLE = 20;
  const room = 1000;

  // Buffers stand in rows from left to right, all with cells of one size where that is possible.
  const place = (cell) => {
    let [x, y, low] = [0, 0, 0];
    for (const grid of data.buffers) {
      grid.rows = Math.ceil(grid.size / grid.width);
      grid.cell = Math.min(cell, room / grid.width);
      const [width, height] = [grid.width * grid.cell, grid.rows * grid.cell];
      if (x > 0 && x + width > room) [x, y, low] = [0, low + GAP, 0];
      [grid.x, grid.y] = [x, y + TITLE];
      x += Math.max(width, 90) + GAP;
      low = Math.max(low, y + TITLE + height);
    }
    return low;
  };
  let cell = 12;
  while (cell > 1 && place(cell) > 460) cell -= 0.5;
  const height = Math.ceil(place(cell)) + 2;
  const scale = window.devicePixelRatio || 1;
  canvas.width = room * scale;
  canvas.height = height * scale;
  canvas.style.width = "100%";
  const pen = canvas.getContext("2d");

  const draw = () => {
    const now = Number(slider.value);
    const style = getComputedStyle(figure);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, room, height);
    pen.font = "13px " + style.fontFamily;
    for (const grid of data.buffers) {
      pen.globalAlpha = 1;
      pen.fillStyle = style.color;
      pen.fillText(grid.name + (grid.scope === "global" ? "" : " (" + grid.scope + ")"),
        grid.x, grid.y - 6);
      pen.globalAlpha = 0.12;
      pen.fillRect(grid.x, grid.y, grid.width * grid.cell, grid.rows * grid.cell);
    }
    for (let step = Math.max(0, now - TRAIL); step <= now; step++) {
      const [site, ...elements] = data.steps[step];
      const [buffer, isStore] = data.sites[site];
      const grid = data.buffers[buffer];
      pen.globalAlpha = step === now ? 1 : 0.55 * (1 - (now - step) / (TRAIL + 1));
      pen.fillStyle = isStore ? data.store : data.load;
      const size = Math.max(1, grid.cell - (grid.cell > 4 ? 1 : 0));
      for (const element of new Set(elements)) {
        pen.fillRect(grid.x + (element % grid.width) * grid.cell,
          grid.y + Math.floor(element / grid.width) * grid.cell, size, size);
      }
    }
    const [site, ...elements] = data.steps[now];
    const [, isStore, text] = data.sites[site];
    output.textContent = "step " + (now + 1) + " of " + data.steps.length + ": " +
      (isStore ? "store " : "load ") + text +
      (elements.length > 1 ? ", " + elements.length + " accesses" : "");
  };

  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "play";
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) >= data.steps.length - 1) slider.value = 0;
    button.textContent = "pause";
    timer = setInterval(() => {
      if (Number(slider.value) >= data.steps.length - 1) return stop();
      slider.value = Number(slider.value) + 1;
      draw();
    }, 60);
  });
  slider.addEventListener("input", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}
