"""Processes that build, check and time candidates."""
