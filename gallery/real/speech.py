"""Detect synthetic speech among silence, noise and a tone, with silero-vad's model.

The model takes 512 samples at 16 kHz, the 64 samples before them, and a state. It returns the next
state and the probability of speech. Its file selects between two sampling rates with an `If`; with
the rate fixed, the branch of the other rate is not compiled.

Source: Silero Team, "Silero VAD", https://github.com/snakers4/silero-vad.
"""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.figure import Figure
from voice import RATE, say

from common import Real, options, package_file

STEP, BEFORE = 512, 64


def listen(model: Real, sound: np.ndarray) -> np.ndarray:
    """Return the probability of speech for every 512 samples."""
    state = np.zeros((2, 1, 128), np.float32)
    padded = np.concatenate([np.zeros(BEFORE, np.float32), sound])
    found = []
    for begin in range(0, len(sound) - STEP + 1, STEP):
        heard = padded[None, begin : begin + BEFORE + STEP]
        speech, state = model(input=np.ascontiguousarray(heard), state=state)
        found.append(float(speech[0, 0]))
    return np.array(found)


def main() -> None:
    arguments = options()
    random = np.random.default_rng(0)
    seconds = np.arange(RATE) / RATE
    parts = {
        "silence": np.zeros(RATE),
        "a voice": say("masema soma isamu", 120, random),
        "noise": 0.02 * random.standard_normal(RATE),
        "a higher voice": say("somisa mesamu asoma", 210, random, length=0.86),
        "a tone": 0.2 * np.sin(2 * np.pi * 440 * seconds),
    }
    path = package_file("silero_vad", "data", "silero_vad.onnx")
    example = {
        "input": np.zeros((1, BEFORE + STEP), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
    }
    fixed = {"sr": np.array(RATE, np.int64)}
    model = Real("speech", "silero-vad", path, example, fixed)
    sound = np.concatenate(list(parts.values())).astype(np.float32)
    heard = listen(model, sound)
    starts = np.cumsum([0, *(len(part) for part in parts.values())]) / STEP
    # The first third of a second of a part does not count: the state remembers the part before.
    spans = [slice(int(a) + 10, int(b)) for a, b in itertools.pairwise(starts)]
    means = {name: heard[span].mean() for name, span in zip(parts, spans, strict=True)}
    right = all((mean > 0.5) == name.endswith("voice") for name, mean in means.items())
    answer = "speech in " + ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())

    figure = Figure(figsize=(9, 3), dpi=80, layout="constrained")
    axes = figure.subplots()
    axes.plot(np.arange(len(sound)) / RATE, sound, color="0.75", lw=0.5)
    axes.plot((np.arange(len(heard)) + 0.5) * STEP / RATE, heard, color="C3", label="speech")
    for name, start in zip(parts, starts * STEP / RATE, strict=False):
        axes.text(start + 0.05, 1.06, name)
    axes.set(xlabel="seconds", ylim=(-1.1, 1.25))
    axes.legend(loc="lower right")
    figure.savefig(arguments.out / "speech.png")
    model.report(arguments.out, not arguments.no_times, answer, right)


if __name__ == "__main__":
    main()
