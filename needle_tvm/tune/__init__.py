"""The search for faster schedules, with a gate that rejects wrong results.

docs/tuning.md describes it from the user's side. `session` finds the tasks, runs `search` in a
separate process, and starts another process if that one dies. `task` says which function gets the
next batch, `sources` and `space` provide candidates, and `status` shows progress. `whole_model`
times the whole model with and without the search's schedules.
"""
