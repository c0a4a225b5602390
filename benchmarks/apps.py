"""The apps' modules that stand on their own, by file: apps/ holds scripts and is no package."""

from pathlib import Path

from needle_tvm.child import load_module

FOLDER = Path(__file__).resolve().parent.parent / "apps"

contestants = load_module(FOLDER / "contestants.py")
models = load_module(FOLDER / "models" / "__init__.py")
peers = load_module(FOLDER / "peers.py")
report = load_module(FOLDER / "report.py")
