"""Rules of ops with bodies that need tracing or layers. needle.loops and needle.recurrence, which
import these ops, define them."""

from types import SimpleNamespace

RULES = SimpleNamespace()
