"""Loops that are of none of the other subjects."""
