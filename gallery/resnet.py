"""A residual network learns where a plain network of the same depth hardly learns.

Both have 40 layers and the same number of weights. In the plain network each layer must pass on
everything that later layers need. A residual block adds its result to its input, so signal and
gradient can bypass the block. The picture shows both losses.

Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition" (2015).
Measured: 98.0 % test accuracy, and 71.6 % with the plain network; 8 s of training for both.
"""

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
from common import Lesson, predict
from needle import nn

CHANNELS, BLOCKS = 16, 19

lesson = Lesson(steps=150)

train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
x, x_test = train.x.reshape(-1, 1, 8, 8), test.x.reshape(-1, 1, 8, 8)


def convolution(inputs):
    """Return a 3 x 3 convolution that keeps the image's size, followed by batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS)
    )


class Block(nn.Module):
    def __init__(self, residual):
        super().__init__()
        self.residual = residual
        self.body = nn.Sequential(convolution(CHANNELS), nn.ReLU(), convolution(CHANNELS))

    def forward(self, x):
        y = self.body(x)
        return nn.functional.relu(x + y if self.residual else y)


def network(residual):
    blocks = [Block(residual) for _ in range(BLOCKS)]
    return nn.Sequential(
        convolution(1),
        nn.ReLU(),
        *blocks,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * CHANNELS, 10),
    )


def trained(model, name):
    """Train the model; return its accuracy on the test images."""
    optimizer = ndl.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.01)
    loss_of = nn.CrossEntropyLoss()
    for _ in lesson.training(title=name):
        batch = lesson.random.integers(0, len(x), 64)
        loss = loss_of(model(ndl.Tensor(x[batch])), ndl.Tensor(train.y[batch]))
        optimizer.reset_grad()
        loss.backward()
        optimizer.step()
        lesson.show(**{name: loss.item()})
    return (predict(model, x_test).argmax(1) == test.y).mean()


plain = trained(network(residual=False), "plain")
model = network(residual=True)
accuracy = trained(model, "residual")

figure = Figure(figsize=(5, 3.2))
axes = figure.subplots()
for name, score, colour in (("plain", plain, "tab:gray"), ("residual", accuracy, "tab:blue")):
    losses = np.array(lesson.history[name])
    axes.plot(losses, color=colour, label=f"{name}: {score:.1%} of test images right")
axes.set(title="40 layers deep", xlabel="step", ylabel="loss", yscale="log")
axes.legend()

lesson.finish(
    model,
    [x_test[:64]],
    figure,
    metric="accuracy",
    score=accuracy,
    baseline=plain,
    against="the same without residuals",
)
