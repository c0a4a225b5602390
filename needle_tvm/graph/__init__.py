"""Relax modules: what operators mean in loops, and tools to rewrite them."""
