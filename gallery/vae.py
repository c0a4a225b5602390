"""A variational autoencoder learns to describe a digit by two numbers.

The encoder gives each image a small cloud in the plane, and the decoder draws an image from a point
of the cloud. The loss rewards good drawings, and clouds that together fill the plane around zero.
The picture shows where test digits lie, and what is drawn from points of the plane.

Source: Kingma and Welling, "Auto-encoding variational Bayes" (2013).
Measured: squared error 0.031 per pixel on test digits after 4 s of training; with two principal
components, 0.053.
"""

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.decomposition import PCA

import needle as ndl
from common import Lesson, predict, tiles
from needle import nn

WIDTH, LATENT = 256, 2

lesson = Lesson(steps=3000)

train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, 2 * LATENT),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, 64),
        )  # fmt: skip

    def encode(self, x):
        """Return the centre of each image's cloud, and the logarithm of its variance."""
        y = self.encoder(x)
        return y[:, :LATENT], y[:, LATENT:]

    def forward(self, x):
        """Return the image drawn from the centre of its cloud, and the centre."""
        centre, _ = self.encode(x)
        return ndl.ops.sigmoid(self.decoder(centre)), centre


model = VAE()
optimizer = ndl.optim.Adam(model.parameters(), lr=0.001)
drawn_badly = nn.BCEWithLogitsLoss(reduction="sum")
for _ in lesson.training():
    x = ndl.Tensor(train.x[lesson.random.integers(0, len(train), 128)])
    centre, log_variance = model.encode(x)
    z = centre + (0.5 * log_variance).exp() * ndl.randn(*centre.shape)
    far_off = 0.5 * (centre**2 + log_variance.exp() - log_variance - 1).sum()  # KL divergence
    loss = (drawn_badly(model.decoder(z), x) + far_off) / len(x)
    optimizer.reset_grad()
    loss.backward()
    optimizer.step()
    lesson.show(loss=loss.item())

drawn, centres = predict(model, test.x)
error = ((drawn - test.x) ** 2).mean()
pca = PCA(LATENT).fit(train.x)
baseline = ((pca.inverse_transform(pca.transform(test.x)) - test.x) ** 2).mean()

# Points of the plane with the density that the clouds should have.
side = norm.ppf(np.linspace(0.03, 0.97, 12)).astype("float32")
plane = np.stack(np.meshgrid(side, -side), -1).reshape(-1, LATENT)
images = 1 / (1 + np.exp(-predict(model.decoder, plane)))
figure = Figure(figsize=(6.4, 3.3))
left, right = figure.subplots(1, 2)
dots = left.scatter(*centres.T, c=test.y, cmap="tab10", s=8, vmin=-0.5, vmax=9.5)
figure.colorbar(dots, ax=left, ticks=range(10), shrink=0.8)
left.set(title="test digits in the plane", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
right.imshow(tiles(images.reshape(-1, 8, 8), columns=12), interpolation="hanning")
right.set_title("what the plane holds")
right.set_axis_off()

lesson.finish(
    model, [test.x[:64]], figure, metric="squared error", score=error,
    baseline=baseline, against="two principal components", better="lower",
)  # fmt: skip
