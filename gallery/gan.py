"""Two networks learn from each other: one draws digits, the other tells them apart from real ones.

The generator never sees a digit. It turns random numbers into an image, and the discriminator's
gradient tells it how to make the image look more real. The picture shows how the images from the
same random numbers change in the course of training, and drawings at the end.

Source: Goodfellow et al., "Generative adversarial nets" (2014).
Measured: likeness to test digits (common.py) 0.74 after 26 s of training; samples of a Gaussian
with the digits' mean and covariance 0.40.
"""

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
from common import Lesson, likeness, predict, tiles
from needle import nn

RANDOM, WIDTH, BATCH = 16, 256, 64
SHOWN = (0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)  # fractions of the training

lesson = Lesson(steps=6000)

train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
digits = 2 * train.x - 1

generator = nn.Sequential(
    nn.Linear(RANDOM, WIDTH), nn.LayerNorm(WIDTH), nn.LeakyReLU(0.2),
    nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.LeakyReLU(0.2),
    nn.Linear(WIDTH, 64), nn.Tanh(),
)  # fmt: skip
discriminator = nn.Sequential(
    nn.Linear(64, WIDTH), nn.LeakyReLU(0.2), nn.Dropout(0.3),
    nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Dropout(0.3),
    nn.Linear(WIDTH, 1),
)  # fmt: skip


def numbers(count):
    return lesson.random.standard_normal((count, RANDOM)).astype("float32")


def blurred(images):
    """Return the images with noise, so that the discriminator is never sure which are real."""
    return images + 0.1 * ndl.randn(*images.shape)


draws = ndl.optim.Adam(generator.parameters(), lr=2e-4, beta1=0.5)
judges = ndl.optim.Adam(discriminator.parameters(), lr=2e-4, beta1=0.5)
ema = ndl.optim.EMA(generator, decay=0.995)
loss_of = nn.BCEWithLogitsLoss()
yes, no = ndl.full((BATCH, 1), 0.9), ndl.zeros(BATCH, 1)
same = numbers(8)
film = []
for step in lesson.training():
    while step >= lesson.steps * SHOWN[len(film)]:
        film.append(predict(generator, same))
    real = ndl.Tensor(digits[lesson.random.integers(0, len(digits), BATCH)])
    drawn = generator(ndl.Tensor(numbers(BATCH)))

    judged = loss_of(discriminator(blurred(real)), yes)
    judged = judged + loss_of(discriminator(blurred(drawn.detach())), no)
    judges.reset_grad()
    judged.backward()
    judges.step()

    fooled = loss_of(discriminator(blurred(drawn)), yes)
    draws.reset_grad()
    fooled.backward()
    draws.step()
    ema.update()
    lesson.show(discriminator=judged.item(), generator=fooled.item())
ema.copy_to()

x = predict(generator, numbers(len(test)))
film.append(predict(generator, same))
score = likeness(test.x, (x + 1) / 2)
gaussian = lesson.random.multivariate_normal(train.x.mean(0), np.cov(train.x.T), len(test))
baseline = likeness(test.x, gaussian)

figure = Figure(figsize=(6.4, 3.2))
left, right = figure.subplots(1, 2, width_ratios=(9, 8))
film = np.stack(film, 1).reshape(-1, 8, 8)
left.imshow(tiles((film + 1) / 2, columns=9))
left.set_title("the same numbers in training")
right.imshow(tiles((x[:64].reshape(-1, 8, 8) + 1) / 2, columns=8))
right.set_title("64 drawings")
for axes in (left, right):
    axes.set_axis_off()

lesson.finish(
    generator, [numbers(64)], figure, metric="likeness", score=score, baseline=baseline,
    against="a Gaussian",
)  # fmt: skip
