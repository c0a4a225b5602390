"""Processes that build, check and time candidates.

`workers` runs requests in processes forked from a template that has imported everything
(`template`, `forked`), under limits that are enforced from outside; `services` lists the requests.
`steps` builds, judges and times one candidate. `devices` has the devices on which candidates run, a
CPU or a GPU, and their clocks.
"""
