"""Recognise the types of two dozen files, which this script writes or finds, with magika's model.

The model reads the first and the last 1024 bytes of a file, after white space is stripped from its
ends, and gives a probability for each of 214 types. Bytes are integers from 0 to 255; 256 means no
byte.

Source: Fratantonio et al., "Magika: AI-Powered Content-Type Detection", arXiv:2409.13768.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
import sys
import tarfile
import tempfile
import wave
import zipfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from common import Real, options, package_file

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
NONE, BLOCK, ENDS = 256, 4096, 1024
FOLDER = ("models", "standard_v3_3")


def features(content: bytes) -> np.ndarray:
    """Return (1, 2048) int32: the first 1024 bytes, padded at the end, and the last 1024, padded at
    the start."""
    begin = content[:BLOCK].lstrip()[:ENDS]
    end = content[-BLOCK:].rstrip()[-ENDS:]
    made = np.full((1, 2 * ENDS), NONE, np.int32)
    made[0, : len(begin)] = list(begin)
    made[0, 2 * ENDS - len(end) :] = list(end)
    return made


def make_files(folder: Path) -> dict[str, Path]:
    """Write or find files; return their paths by type."""
    rows = "".join(f"{i},{i * i},{'even' if i % 2 == 0 else 'odd'}\n" for i in range(60))
    records = [{"name": f"item {i}", "price": i / 4, "tags": ["a", "b"]} for i in range(40)]
    page = "".join(f"<p class='row'>Row <b>{i}</b></p>\n" for i in range(30))
    texts = {
        "csv": "number,square,kind\n" + rows,
        "json": json.dumps(records, indent=2),
        "html": f"<!DOCTYPE html>\n<html><head><title>Rows</title></head>\n{page}</html>\n",
        "xml": "<?xml version='1.0'?>\n<rows>" + "<row n='1'>x</row>\n" * 40 + "</rows>\n",
        "ini": "".join(f"[section{i}]\nkey = value\npath = /tmp/{i}\n\n" for i in range(12)),
        "sql": "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT NOT NULL);\n"
        + "".join(f"INSERT INTO t (id, name) VALUES ({i}, 'name {i}');\n" for i in range(30)),
        "shell": "#!/bin/sh\nset -e\n"
        + "".join(f'if [ -f "$HOME/{i}" ]; then\n  echo "found {i}"\nfi\n' for i in range(15)),
    }
    files = {kind: folder / f"made.{kind}" for kind in texts}
    for kind, text in texts.items():
        files[kind].write_text(text)
    numbers = np.random.default_rng(0).standard_normal(4000)
    figure = Figure()
    figure.subplots().plot(numbers[:100])
    for kind in ("png", "pdf", "svg"):
        files[kind] = folder / f"plot.{kind}"
        figure.savefig(files[kind])
    for kind in ("npy", "npz", "pickle", "gzip", "zip", "tar", "sqlite", "wav"):
        files[kind] = folder / f"made.{kind}"
    np.save(files["npy"], numbers)
    np.savez(files["npz"], numbers=numbers, others=numbers[::2])
    files["pickle"].write_bytes(pickle.dumps(records))
    with gzip.open(files["gzip"], "wb") as packed:
        packed.write(numbers.tobytes())
    with zipfile.ZipFile(files["zip"], "w") as archive:
        archive.write(HERE, "source.py")
    with tarfile.open(files["tar"], "w") as tape:
        tape.add(HERE, "source.py")
    base = sqlite3.connect(files["sqlite"])
    base.execute("CREATE TABLE squares (n INTEGER, square INTEGER)")
    base.executemany("INSERT INTO squares VALUES (?, ?)", [(i, i * i) for i in range(500)])
    base.commit()
    base.close()
    with wave.open(str(files["wav"]), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes((8000 * np.sin(np.arange(16000) / 6)).astype("<i2").tobytes())
    return files | {
        "python": HERE,
        "elf": Path(sys.executable).resolve(),
        "ttf": Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"),
        "toml": ROOT / "pyproject.toml",
        "makefile": ROOT / "Makefile",
        "markdown": ROOT / "README.md",
        "onnx": package_file("magika", *FOLDER, "model.onnx"),
    }


def main() -> None:
    given = options()
    config = package_file("magika", *FOLDER, "config.min.json")
    labels = json.loads(config.read_text())["target_labels_space"]
    path = package_file("magika", *FOLDER, "model.onnx")
    model = Real("file_types", "magika", path, {"bytes": features(HERE.read_bytes())})
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(Path(folder))
        named = {}
        for kind, file in files.items():
            (scores,) = model(bytes=features(file.read_bytes()))
            named[kind] = labels[int(scores.argmax())]
    wrong = [f"{kind} named {name}" for kind, name in named.items() if name != kind]
    answer = f"{len(named) - len(wrong)} of {len(named)} file types named"
    answer += f" ({', '.join(wrong)})" if wrong else ""
    model.report(given.out, not given.no_times, answer, not wrong)


if __name__ == "__main__":
    main()
