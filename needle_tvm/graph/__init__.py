"""Relax modules: our legalisation of operators into loops, and tools for graph rewrites."""
