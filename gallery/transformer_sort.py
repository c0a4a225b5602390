"""A Transformer learns to sort ten numbers, at all positions at once.

It sees rows of digits and the sorted rows, never a rule. At each position it must give the sorted
row's digit; to find it, it must count the smaller digits. The picture shows which inputs each
position of the result attends to.

Source: Vaswani et al., "Attention is all you need" (2017); Karpathy's minGPT has sorting as an
exercise.
Measured: after 9 s of training, 99.9 % of new rows are sorted without a mistake; giving each
position its median digit sorts 0.1 %.
"""

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
from common import Lesson, looks_of, predict
from needle import nn

LENGTH, DIGITS, WIDTH, HEADS, LAYERS = 10, 10, 64, 4, 2

lesson = Lesson(steps=1000)


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(DIGITS, WIDTH)
        self.place = nn.SinusoidalEncoding(WIDTH, batch_first=True)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, DIGITS)

    def forward(self, x):
        return self.head(self.encoder(self.place(self.embed(x))))


model = Sorter()
optimizer = ndl.optim.AdamW(model.parameters(), lr=0.002)
schedule = ndl.optim.OneCycleLR(optimizer, max_lr=0.002, total_steps=lesson.steps)
loss_of = nn.CrossEntropyLoss()
for _ in lesson.training():
    x = lesson.random.integers(0, DIGITS, (128, LENGTH))
    scores = model(ndl.Tensor(x))
    loss = loss_of(scores.reshape((-1, DIGITS)), ndl.Tensor(np.sort(x).reshape(-1)))
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    lesson.show(loss=loss.item())

x_test = lesson.random.integers(0, DIGITS, (2000, LENGTH))  # of 10 billion rows, so all are new
right = np.sort(x_test)
accuracy = (predict(model, x_test).argmax(-1) == right).all(1).mean()
usual = np.round(np.median(right, 0))
baseline = (usual == right).all(1).mean()

example = x_test[:1]
found = predict(model, example).argmax(-1)[0]
looks = looks_of(model.encoder.layers, model, example)
figure = Figure(figsize=(6.2, 3.65))
for i, axes in enumerate(figure.subplots(1, LAYERS)):
    axes.imshow(looks[i][0], cmap="Blues", vmin=0)
    axes.set_xticks(range(LENGTH), example[0])
    axes.set_yticks(range(LENGTH), found)
    axes.set(title=f"layer {i + 1}", xlabel="input", ylabel="result")
figure.suptitle(f"where each place of the result looks: {accuracy:.1%} of rows sorted")

lesson.finish(
    model, [x_test[:64]], figure, metric="rows sorted", score=accuracy, baseline=baseline,
    against="the median of each place",
)  # fmt: skip
