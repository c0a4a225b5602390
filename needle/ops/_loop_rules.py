"""Rules of ops with bodies that trace, or that know layers: needle.loops and needle.recurrence
define them, which need these ops."""

from types import SimpleNamespace

RULES = SimpleNamespace()
