"""A graph network learns who stays with whom in a club, from the choices of two members.

In Zachary's karate club the teacher and the president quarrelled, and all 34 members chose a side.
The network knows the choice of these two and who is friends with whom. Each layer averages a
member's features with the features of its friends. The picture shows how sure the network is of
each member.

Source: Kipf and Welling, "Semi-supervised classification with graph convolutional networks" (2016);
Zachary, "An information flow model for conflict and fission in small groups" (1977).
Measured: after 1 s of training, the choices of 31 of the other 32 members are right; counting
friendships with the two gets 29 right.
"""

import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax

import needle as ndl
from common import Lesson, laid_out, predict
from needle import nn

MEMBERS, WIDTH, TEACHER, PRESIDENT = 34, 16, 0, 33
# Each member's friends with larger numbers.
FRIENDS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31), 1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32), 3: (7, 12, 13), 4: (6, 10), 5: (6, 10, 16), 6: (16,),
    8: (30, 32, 33), 9: (33,), 13: (33,), 14: (32, 33), 15: (32, 33), 18: (32, 33), 19: (33,),
    20: (32, 33), 22: (32, 33), 23: (25, 27, 29, 32, 33), 24: (25, 27, 31), 25: (31,), 26: (29, 33),
    27: (33,), 28: (31, 33), 29: (32, 33), 30: (32, 33), 31: (32, 33), 32: (33,),
}  # fmt: skip
choice = np.isin(range(MEMBERS), (9, 14, 15, 18, 20, *range(22, 34))).astype("int64")

lesson = Lesson(steps=200)

pairs = np.array([(a, b) for a, friends in FRIENDS.items() for b in friends])
itself = np.arange(MEMBERS)
source = np.concatenate([pairs[:, 0], pairs[:, 1], itself])
target = np.concatenate([pairs[:, 1], pairs[:, 0], itself])
degree = np.bincount(target).astype("float32")
share = 1 / np.sqrt(degree[source] * degree[target])[:, None]


class GCN(nn.Module):
    """Maps features (members, MEMBERS) and the graph to scores of both choices (members, 2)."""

    def __init__(self):
        super().__init__()
        sizes = (MEMBERS, WIDTH), (WIDTH, WIDTH), (WIDTH, 2)
        self.layers = nn.ModuleList([nn.Linear(*size) for size in sizes])

    def forward(self, x, source, target, share):
        for i, layer in enumerate(self.layers):
            y = layer(x.tanh() if i else x)
            x = ndl.segment_sum(ndl.take(y, source, 0) * share, target, MEMBERS)
        return x


graph = [ndl.Tensor(each) for each in (source, target, share)]
features = np.eye(MEMBERS, dtype="float32")  # a member's only feature is its number
told = [TEACHER, PRESIDENT]
model = GCN()
optimizer = ndl.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
loss_of = nn.CrossEntropyLoss()
for _ in lesson.training():
    scores = model(ndl.Tensor(features), *graph)
    loss = loss_of(scores[told], ndl.Tensor(choice[told]))
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    lesson.show(loss=loss.item())

others = np.setdiff1d(itself, told)
scores = predict(model, features, source, target, share)
accuracy = (scores.argmax(1) == choice)[others].mean()

# The baseline: friends of the president who are not friends of the teacher go with him.
friend = np.zeros((MEMBERS, MEMBERS))
friend[source, target] = 1
baseline = ((friend[:, PRESIDENT] > friend[:, TEACHER]) == choice)[others].mean()

places = laid_out(friend, lesson.random)
figure = Figure(figsize=(5, 3.8))
axes = figure.subplots()
axes.plot(*places[pairs].transpose(2, 1, 0), color="lightgray", linewidth=0.6, zorder=0)
edges = np.where(scores.argmax(1) == choice, "none", "black")
sure = softmax(scores, 1)[:, 1]
dots = axes.scatter(*places.T, s=110, c=sure, cmap="coolwarm", edgecolors=edges, vmin=0, vmax=1)
for member, place in enumerate(places):
    colour = "black" if 0.2 < sure[member] < 0.8 else "white"
    axes.annotate(member + 1, place, ha="center", va="center", fontsize=6, color=colour)
figure.colorbar(dots, label="with the president (34)")
axes.set_title(f"{accuracy:.0%} of 32 members right (wrong: ringed)")
axes.set_axis_off()

lesson.finish(
    model, [features, source, target, share], figure, metric="accuracy", score=accuracy,
    baseline=baseline, against="counting friendships with the two leaders",
)  # fmt: skip
