"""Scans of bodies that are there already: how they run, and the usual recurrent layers.

`needle.loops` traces the bodies of others.
"""
