"""A convolutional network learns to read handwritten digits of 8 x 8 pixels.

The same small filters are applied at every position, so the network needs few weights. Training
shifts each image by up to a pixel, which gives nine times as many images. The picture shows the
first filters' responses to a digit, and the test images that are still misread.

Source: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition"
(1998).
Measured: 98.6 % test accuracy after 3 s of training; logistic regression reaches 95.2 %.
"""

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

import needle as ndl
from common import Lesson, predict, tiles
from needle import nn

FILTERS = 16

lesson = Lesson(steps=700)

train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
x, x_test = train.x.reshape(-1, 1, 8, 8), test.x.reshape(-1, 1, 8, 8)


def shifted(images):
    """Return each image moved by up to one pixel in each direction, with zeros at the edges."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    down, right = lesson.random.integers(0, 3, (2, len(images), 1, 1))
    rows, columns = np.arange(8)[:, None] + down, np.arange(8) + right
    return padded[np.arange(len(images))[:, None, None], 0, rows, columns][:, None]


first = nn.Conv2d(1, FILTERS, 3, padding=1)
model = nn.Sequential(
    first, nn.ReLU(), nn.Conv2d(FILTERS, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 4, 10),
)  # fmt: skip
optimizer = ndl.optim.Adam(model.parameters(), lr=0.002)
loss_of = nn.CrossEntropyLoss()
for _ in lesson.training():
    batch = lesson.random.integers(0, len(x), 64)
    loss = loss_of(model(ndl.Tensor(shifted(x[batch]))), ndl.Tensor(train.y[batch]))
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    lesson.show(loss=loss.item())

found = predict(model, x_test).argmax(1)
accuracy = (found == test.y).mean()
linear = LogisticRegression(max_iter=1000).fit(train.x, train.y).score(test.x, test.y)

wrong = np.flatnonzero(found != test.y)
figure = Figure(figsize=(6, 2.6))
digit, answers, missed = figure.subplots(1, 3, width_ratios=(1, 2.5, 2.4))
digit.imshow(x_test[0, 0])
digit.set_title("a digit")
answers.imshow(tiles(np.maximum(predict(first, x_test[:1])[0], 0), columns=4))
answers.set_title("what 16 filters answer")
missed.imshow(tiles(x_test[wrong[:6], 0], columns=3))
missed.set_title(
    f"{len(wrong)} of {len(x_test)} misread:\n"
    + ", ".join(f"{test.y[i]} as {found[i]}" for i in wrong[:6])
)
for axes in (digit, answers, missed):
    axes.set_axis_off()

lesson.finish(
    model,
    [x_test[:64]],
    figure,
    metric="accuracy",
    score=accuracy,
    baseline=linear,
    against="logistic regression",
)
