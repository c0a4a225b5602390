"""The tests: their folders are those of what they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
