"""Searching for faster schedules, and refusing those that are wrong."""
