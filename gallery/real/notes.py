"""Find the notes of a melody of synthetic tones, with basic-pitch's model.

The model takes 43,844 samples at 22,050 Hz. For each of 172 frames it gives the probability that
each of a piano's 88 notes begins, the probability that each note sounds, and the probability of
each pitch, in thirds of a semitone.

Source: Bittner et al., "A Lightweight Instrument-Agnostic Model for Polyphonic Note Transcription
and Multipitch Estimation", ICASSP 2022.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from common import Real, options, package_file

RATE, HOP, WINDOW, FRAMES = 22050, 256, 43844, 172
OVERLAP = 15  # frames at either end of a window, where the neighbouring window is more certain
INPUT = "serving_default_input_2:0"
LOWEST = 21  # the MIDI number of a piano's lowest note, A0 of 27.5 Hz
# MIDI number, start and end in seconds: a melody over a few low notes and a chord.
SCORE = (
    (64, 0.2, 0.6), (66, 0.65, 1.05), (68, 1.1, 1.5), (69, 1.55, 1.95), (71, 2.0, 2.8),
    (52, 0.2, 1.4), (57, 1.5, 2.8), (60, 3.0, 4.4), (64, 3.0, 4.4), (67, 3.0, 4.4),
)  # fmt: skip


def tone(number: float, seconds: float) -> np.ndarray:
    """Return a plucked string's sound: eight harmonics that fade."""
    t = np.arange(int(seconds * RATE)) / RATE
    frequency = 440 * 2 ** ((number - 69) / 12)
    made = sum(
        np.sin(2 * np.pi * k * frequency * t) * np.exp(-t * (1 + 0.6 * k)) / k for k in range(1, 9)
    )
    return made * np.minimum(1, np.minimum(t, t[::-1]) / 0.01)


def play(score: tuple[tuple[int, float, float], ...]) -> np.ndarray:
    """Return the notes of a score as float32 samples."""
    sound = np.zeros(int((max(end for _, _, end in score) + 0.3) * RATE))
    for number, start, end in score:
        made = tone(number, end - start)
        begin = int(start * RATE)
        sound[begin : begin + len(made)] += made
    return (0.5 * sound / np.abs(sound).max()).astype(np.float32)


def windows(sound: np.ndarray) -> list[np.ndarray]:
    """Return the sound in windows (1, 43844, 1), each overlapping the next by 30 frames."""
    padded = np.concatenate([np.zeros(OVERLAP * HOP, np.float32), sound])
    step = WINDOW - 2 * OVERLAP * HOP
    found = []
    for begin in range(0, len(sound), step):
        part = padded[begin : begin + WINDOW]
        found.append(np.pad(part, (0, WINDOW - len(part)))[None, :, None])
    return found


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return (frames, pitches) from the windows' outputs, without the overlaps."""
    return np.concatenate([part[0, OVERLAP:-OVERLAP] for part in parts])


def frame(seconds: float) -> int:
    """Return the number of the frame at `seconds`; a window's step has 142 frames."""
    return int(seconds * RATE * (FRAMES - 2 * OVERLAP) / (WINDOW - 2 * OVERLAP * HOP))


def main() -> None:
    arguments = options()
    path = package_file("basic_pitch", "saved_models", "icassp_2022", "nmp.onnx")
    sound = play(SCORE)
    cut = windows(sound)
    model = Real("notes", "basic-pitch", path, {INPUT: cut[0]})
    outputs = [model(**{INPUT: window}) for window in cut]
    # In the file's order: onsets, notes, contours.
    _onsets, notes, contours = (joined(list(parts)) for parts in zip(*outputs, strict=True))

    off, missed = [], []
    for number, start, end in SCORE:
        span = slice(frame(start) + 4, frame(start + min(end - start, 0.4)) - 4)
        near = slice(3 * (number - LOWEST - 2), 3 * (number - LOWEST + 3))
        heard = contours[span, near].mean(0)
        # Bins are thirds of a semitone: bin 3 k + 1 is note k.
        found = LOWEST + (near.start + int(heard.argmax()) - 1) / 3
        off.append(abs(found - number))
        if notes[span, number - LOWEST].mean() < 0.5:
            missed.append(number)
    sounding = {LOWEST + int(k) for k in np.flatnonzero(notes.max(0) > 0.5)}
    extra = sounding - {number for number, _, _ in SCORE}
    answer = f"{len(SCORE) - len(missed)} of {len(SCORE)} notes heard, {len(extra)} others"
    answer += f", pitch within {max(off):.2f} semitones"

    figure = Figure(figsize=(9, 4), dpi=80, layout="constrained")
    axes = figure.subplots()
    seconds = len(notes) / frame(1)
    extent = (0, seconds, LOWEST - 0.5, LOWEST + 87.5)
    axes.imshow(
        notes.T, aspect="auto", origin="lower", extent=extent, cmap="gray_r", vmin=0, vmax=1
    )
    for number, start, end in SCORE:
        place = (start, number - 0.5)
        axes.add_patch(Rectangle(place, end - start, 1, fill=False, ec="C3", lw=1.2))
    axes.set(xlim=(0, 4.7), ylim=(45, 78), xlabel="seconds", ylabel="MIDI number")
    figure.savefig(arguments.out / "notes.png")
    model.report(arguments.out, not arguments.no_times, answer, not missed and max(off) < 1)


if __name__ == "__main__":
    main()
