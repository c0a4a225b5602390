"""Schedules of loops that belong to no other kernel."""
