"""Tell two synthetic voices apart, whatever they say, with Resemblyzer's model.

The model reads 160 frames of 40 mel bands, 1.6 seconds, with three LSTM layers. It gives a point on
a sphere in 256 dimensions; points of the same voice lie near each other. The package has weights
for PyTorch, so PyTorch exports the ONNX file here.

Source: Wan et al., "Generalized End-to-End Loss for Speaker Verification", ICASSP 2018; the mel
scale is from Slaney, "Auditory Toolbox", 1998.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from voice import RATE, say

from common import Real, options, package_file

FRAMES, BANDS, WINDOW, HOP = 160, 40, 400, 160


class Encoder(torch.nn.Module):
    """The package's network. It is copied because the package's module imports audio readers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(BANDS, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(mels)
        found = torch.relu(self.linear(hidden[-1]))
        return found / torch.norm(found, dim=1, keepdim=True)


def export(path: Path) -> None:
    """Write the encoder with the package's weights as an ONNX file."""
    file = package_file("resemblyzer", "pretrained.pt")
    state = torch.load(file, map_location="cpu", weights_only=True)["model_state"]
    encoder = Encoder().eval()
    encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
    example = torch.zeros(1, FRAMES, BANDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated
        torch.onnx.export(
            encoder, (example,), path, dynamo=False, input_names=["mels"], output_names=["voice"]
        )


def mel_filters() -> np.ndarray:
    """Return (40, 201): triangles of area one, evenly spaced on Slaney's scale."""

    def to_hertz(mel: np.ndarray) -> np.ndarray:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    edges = to_hertz(np.linspace(0, top, BANDS + 2))[:, None]
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])


def mels(sound: np.ndarray) -> np.ndarray:
    """Return (1, 160, 40): the power in each band, for 160 windows of 25 ms every 10 ms."""
    sound = sound * (10 ** (-30 / 20) / np.sqrt(np.mean(sound**2)))  # as loud as in training
    padded = np.pad(sound, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:FRAMES]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    return (power @ mel_filters().T)[None].astype(np.float32)


def main() -> None:
    arguments = options()
    path = arguments.out / "speakers.onnx"
    export(path)
    random = np.random.default_rng(0)
    voices = {"low": (110, 1.0), "high": (215, 0.85)}
    texts = ("masema soma isamu", "osima mesu amose", "umase simo amesi")
    names, sounds = [], []
    for (name, (pitch, length)), text in itertools.product(voices.items(), texts):
        names.append(name)
        sounds.append(mels(say(text, pitch, random, length)))
    model = Real("speakers", "resemblyzer", path, {"mels": sounds[0]})
    points = np.concatenate([model(mels=sound)[0] for sound in sounds])
    near = points @ points.T
    same = np.equal.outer(names, names)
    least, most = near[same].min(), near[~same].max()
    answer = f"one voice at least {least:.2f} alike, two at most {most:.2f}"

    figure = Figure(figsize=(5, 4), dpi=80, layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(near, vmin=0, vmax=1), label="likeness")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    figure.savefig(arguments.out / "speakers.png")
    model.report(arguments.out, not arguments.no_times, answer, least > most)


if __name__ == "__main__":
    main()
