"""Rules for ops with bodies. The rules need tracing or layers, so needle.loops and
needle.recurrence, which import these ops, define them."""

from types import SimpleNamespace

RULES = SimpleNamespace()
