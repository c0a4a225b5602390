"""Passes over the graph that are about no one kernel, one file each, with preconditions on top."""
