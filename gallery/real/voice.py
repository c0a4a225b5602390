"""A voice made by formulas: pulses through three resonators, as in a formant synthesiser.

Source: Klatt, "Software for a cascade/parallel formant synthesizer", JASA 67(3), 1980. The vowels'
formants are from Peterson and Barney, JASA 24(2), 1952.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

RATE = 16000
FORMANTS = {
    "a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410),
    "u": (300, 870, 2240), "m": (250, 1000, 2200),
}  # fmt: skip


def resonator(sound: np.ndarray, frequency: float, bandwidth: float) -> np.ndarray:
    """Return the sound after a two-pole filter at a frequency in Hz."""
    radius = np.exp(-np.pi * bandwidth / RATE)
    turn = 2 * radius * np.cos(2 * np.pi * frequency / RATE)
    return lfilter([1 - turn + radius**2], [1, -turn, radius**2], sound)


def voiced(letter: str, pitch: float, length: float, random: np.random.Generator) -> np.ndarray:
    """Return a vowel or m whose pitch falls from 112 to 87 % of `pitch`, with a little vibrato."""
    count = int((0.09 if letter == "m" else 0.16) * RATE)
    t = np.arange(count) / RATE
    frequency = pitch * (1.12 - 0.25 * t * RATE / count) * (1 + 0.02 * np.sin(2 * np.pi * 5 * t))
    pulses = np.diff(np.floor(np.cumsum(frequency / RATE)), prepend=0) > 0
    source = lfilter([1], [1, -0.95], pulses) + 0.003 * random.standard_normal(count)
    made = sum(
        gain * resonator(source, formant / length, bandwidth)
        for formant, bandwidth, gain in zip(
            FORMANTS[letter], (80, 100, 140), (1, 0.7, 0.4), strict=True
        )
    )
    made = made * np.hanning(count) ** 0.35
    return made / np.abs(made).max() * (0.5 if letter == "m" else 1)


def say(text: str, pitch: float, random: np.random.Generator, length: float = 1.0) -> np.ndarray:
    """Return a text of the letters a, e, i, o, u, m, s and spaces as samples at 16 kHz.

    `pitch` is in Hz. `length` is the length of the vocal tract relative to a man's: a shorter tract
    has higher formants.
    """
    parts = []
    for letter in text:
        if letter in FORMANTS:
            parts.append(voiced(letter, pitch, length, random))
        elif letter == "s":
            count = int(0.09 * RATE)
            hiss = np.diff(random.standard_normal(count + 1))
            parts.append(0.08 * hiss * np.hanning(count))
        else:
            parts.append(np.zeros(int(0.05 * RATE)))
    return (0.3 * np.concatenate(parts)).astype(np.float32)
