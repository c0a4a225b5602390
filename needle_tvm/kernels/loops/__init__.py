"""Schedules of loops that belong to no kernel with its own rules."""
