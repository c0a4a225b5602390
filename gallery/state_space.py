"""A selective state-space model (S6) learns to keep letters and to ignore the rest.

It reads four letters among 20 blanks, and then four question marks, at which it must give the
letters in order. The input decides how fast the state decays and what the step adds to it;
`needle.scan` runs the steps. The picture shows how much of the state each symbol replaces.

Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces" (2023),
section 3, without convolution and gate; the task is their selective copying.
Measured: 99.0 % of the letters are right; without a state, 11.9 % (chance: 12.5 %).
"""

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
from common import Lesson, predict
from needle import nn

LETTERS, COPIED, LENGTH, WIDTH, STATE = 8, 4, 24, 48, 8

lesson = Lesson(steps=1000)


class S6(nn.Module):
    """Maps (time, batch, WIDTH) to the same shape; without `memory`, each step starts at 0."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.rate = memory, nn.Linear(WIDTH, WIDTH)
        self.write, self.read = (nn.Linear(WIDTH, STATE, bias=False) for _ in range(2))
        speeds = np.full((WIDTH, STATE), range(1, STATE + 1), "float32")
        self.log_speed = nn.Parameter(np.log(speeds))
        self.skip = nn.Parameter(ndl.ones(WIDTH))

    def forward(self, x):
        def cell(h, x):  # h (batch, WIDTH, STATE), x (batch, WIDTH)
            rate = nn.functional.softplus(self.rate(x)).unsqueeze(-1)
            h = (-rate * self.log_speed.exp()).exp() * h
            h = h + rate * x.unsqueeze(-1) * self.write(x).unsqueeze(-2)
            return h, (h * self.read(x).unsqueeze(-2)).sum(-1) + self.skip * x

        if self.memory:
            return ndl.scan(cell, ndl.zeros(*x.shape[1:], STATE), x)[1]
        return cell(ndl.zeros(*x.shape, STATE), x)[1]


def drawn(rows):  # input (time, rows) and its letters (COPIED, rows)
    letters = lesson.random.integers(0, LETTERS, (COPIED, rows))
    x = np.repeat([LETTERS, LETTERS + 1], [LENGTH, COPIED])[:, None].repeat(rows, 1)
    places = np.sort(lesson.random.random((LENGTH, rows)).argsort(0)[:COPIED], 0)
    np.put_along_axis(x, places, letters, 0)
    return x, letters


def trained(title, memory, steps):
    """Return a trained model, which maps (time, batch) to the letters' scores at each time."""
    model = nn.Sequential(nn.Embedding(LETTERS + 2, WIDTH))
    for _ in range(2):
        layers = nn.LayerNorm(WIDTH), S6(memory), nn.GELU(), nn.Linear(WIDTH, WIDTH)
        model.append(nn.Residual(nn.Sequential(*layers)))
    model.append(nn.Linear(WIDTH, LETTERS))
    optimizer = ndl.optim.AdamW(model.parameters(), lr=0.004)
    schedule = ndl.optim.OneCycleLR(optimizer, max_lr=0.004, total_steps=steps)
    for _ in lesson.training(steps, title):
        x, y = drawn(64)
        scores = model(ndl.Tensor(x))[LENGTH:].reshape((-1, LETTERS))
        loss = nn.CrossEntropyLoss()(scores, ndl.Tensor(y.reshape(-1)))
        optimizer.reset_grad()
        loss.backward()
        ndl.optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        lesson.show(**{title: loss.item()})
    return model


model = trained("S6", True, lesson.steps)
plain = trained("no state", False, lesson.steps // 10 + 1)
x_test, y_test = drawn(2000)
found = [predict(each, x_test)[LENGTH:].argmax(-1) for each in (model, plain)]
score, baseline = (np.array(found) == y_test).mean((1, 2))

figure = Figure(figsize=(6.6, 3.3))
left, right = figure.subplots(1, 2, width_ratios=(1, 2))
for title, losses in lesson.history.items():
    left.plot(losses, label=title)
left.set(xlabel="step", title=f"loss: {score:.1%} right, {baseline:.1%} without")
left.legend()
norm, mix, *_ = model[1].fn
rates = nn.functional.softplus(mix.rate(norm(model[0](ndl.Tensor(x_test[:, 0])))))
replaced = 1 - (-rates * mix.log_speed[:, 0].exp()).exp().numpy()
right.imshow(replaced[:, replaced.std(0).argsort()].T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
right.set_xticks(range(len(x_test)), ["ABCDEFGH.?"[each] for each in x_test[:, 0]])
right.set(yticks=[], ylabel="channels", title="how much of the slowest state is replaced")

lesson.finish(
    model, [x_test[:, :64]], figure, metric="letters right", score=score, baseline=baseline,
    against="the same without a state",
)  # fmt: skip
