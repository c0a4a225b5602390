"""A diffusion model learns to draw digits by taking noise away, a little at a time.

It sees digits with more or less noise and predicts the noise. Drawing begins with pure noise and
subtracts the predicted noise, a hundred times. The picture shows drawings on their way from noise
to digits, and finished drawings.

Source: Ho, Jain and Abbeel, "Denoising diffusion probabilistic models" (2020).
Measured: likeness to test digits (common.py) 0.74 after 20 s of training; Gaussian samples 0.39.
"""

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
from common import Lesson, likeness, predict, tiles
from needle import nn

TIMES, WIDTH = 100, 256

lesson = Lesson(steps=6000)

train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
digits = 2 * train.x - 1

# kept[t] is the digit's share of a noisy image at time t of TIMES.
added = np.linspace(1e-3, 0.15, TIMES)
kept = np.cumprod(1 - added).astype("float32")


def block():
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
    )


class Denoiser(nn.Module):
    """Maps noisy digits (N, 64) and their times (N,) to the noise in them (N, 64)."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(64, WIDTH)
        self.time = nn.Embedding(TIMES, WIDTH)
        self.blocks = nn.ModuleList([block() for _ in range(4)])
        self.write = nn.Linear(WIDTH, 64)

    def forward(self, x, t):
        y, time = self.read(x), self.time(t)
        for block in self.blocks:
            y = y + block(y + time)
        return self.write(y)


model = Denoiser()
ema = ndl.optim.EMA(model, decay=0.995)
optimizer = ndl.optim.Adam(model.parameters(), lr=0.003)
schedule = ndl.optim.CosineAnnealingLR(optimizer, T_max=lesson.steps)
loss_of = nn.MSELoss()
for _ in lesson.training():
    x = digits[lesson.random.integers(0, len(digits), 128)]
    t = lesson.random.integers(0, TIMES, len(x))
    noise = lesson.random.standard_normal(x.shape).astype("float32")
    noisy = np.sqrt(kept[t])[:, None] * x + np.sqrt(1 - kept[t])[:, None] * noise
    loss = loss_of(model(ndl.Tensor(noisy), ndl.Tensor(t)), ndl.Tensor(noise))
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    ema.update()
    lesson.show(loss=loss.item())
ema.copy_to()

x = lesson.random.standard_normal((len(test), 64)).astype("float32")
film = [x[:8]]
for t in reversed(range(TIMES)):
    noise = predict(model, x, np.full(len(x), t))
    x = (x - added[t] / np.sqrt(1 - kept[t]) * noise) / np.sqrt(1 - added[t])
    again = lesson.random.standard_normal(x.shape) * (t > 0)
    x = (x + np.sqrt(added[t]) * again).astype("float32")
    if t % 10 == 0:
        film.append(x[:8])
x = np.clip(x, -1, 1)
score = likeness(test.x, (x + 1) / 2)
gaussian = lesson.random.multivariate_normal(train.x.mean(0), np.cov(train.x.T), len(test))
baseline = likeness(test.x, gaussian)

figure = Figure(figsize=(6.4, 3))
left, right = figure.subplots(1, 2, width_ratios=(11, 8))
film = np.clip((np.stack(film, 1) + 1) / 2, 0, 1).reshape(-1, 8, 8)
left.imshow(tiles(film, columns=11))
left.set_title("from noise to digits")
right.imshow(tiles((x[8:72].reshape(-1, 8, 8) + 1) / 2, columns=8))
right.set_title("64 drawings")
for axes in (left, right):
    axes.set_axis_off()

lesson.finish(
    model, [x[:64], np.arange(64)], figure, metric="likeness", score=score, baseline=baseline,
    against="a Gaussian",
)  # fmt: skip
