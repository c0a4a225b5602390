"""Schedules for loops that no kernel's own rules handle."""
