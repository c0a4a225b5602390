"""An MLP learns which arm of three spirals a point lies on.

No straight line separates the arms, so logistic regression is little better than guessing. Two
hidden layers bend the plane until a line separates the arms. The picture shows how the network
divides the plane.

Source: Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors"
(1986); Lang and Witbrock (1988) introduced two spirals as a test.
Measured: 99.5 % accuracy on new points after 1 s of training; logistic regression reaches 47.7 %.
"""

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

import needle as ndl
from common import Lesson, predict
from needle import nn

ARMS, NOISE = 3, 0.04
COLOURS = ("tab:blue", "tab:orange", "tab:green")

lesson = Lesson(steps=1500)


def spirals(points):
    """Return points (n, 2) and the arm of each."""
    arm = lesson.random.integers(0, ARMS, points)
    radius = np.sqrt(lesson.random.uniform(0.01, 1, points))
    angle = 2 * np.pi * (arm / ARMS + 1.25 * radius)
    x = radius * np.stack([np.cos(angle), np.sin(angle)])
    return (x.T + NOISE * lesson.random.standard_normal((points, 2))).astype("float32"), arm


x, y = spirals(1000)
x_test, y_test = spirals(1000)

model = nn.Sequential(
    nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ARMS)
)
optimizer = ndl.optim.Adam(model.parameters(), lr=0.005)
loss_of = nn.CrossEntropyLoss()
for _ in lesson.training():
    batch = lesson.random.integers(0, len(x), 128)
    loss = loss_of(model(ndl.Tensor(x[batch])), ndl.Tensor(y[batch]))
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    lesson.show(loss=loss.item())

accuracy = (predict(model, x_test).argmax(1) == y_test).mean()
linear = LogisticRegression().fit(x, y).score(x_test, y_test)

side = np.linspace(-1.15, 1.15, 200, dtype="float32")
plane = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
figure = Figure(figsize=(4, 4))
axes = figure.subplots()
chosen = predict(model, plane).argmax(1).reshape(200, 200)
axes.contourf(side, side, chosen, [-0.5, 0.5, 1.5, 2.5], colors=COLOURS, alpha=0.3)
for arm, colour in enumerate(COLOURS):
    axes.plot(*x_test[y_test == arm].T, ".", color=colour, markersize=4)
axes.set(title=f"three spirals: {accuracy:.1%} of new points right", aspect="equal")
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
