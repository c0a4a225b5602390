"""Attention as one kernel, which reads and writes heads in place."""
