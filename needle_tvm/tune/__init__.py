"""The search for faster schedules, with a gate that refuses wrong results."""
