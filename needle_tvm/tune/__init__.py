"""Searches for faster schedules, with a gate that rejects wrong results.

docs/tuning.md describes the search for users. `session` finds the tasks, runs `search` in a
separate process, and starts another process if that one dies. `task` chooses the function that gets
the next batch, `sources` and `space` provide candidates, and `status` shows progress. `whole_model`
times the whole model with and without the search's schedules.
"""
