"""Processes that build, check and time candidates.

`workers` runs requests in processes forked from a template that has imported everything
(`template`, `forked`), under limits that are enforced from outside; `services` lists the requests.
`steps` builds, judges and times one candidate. `devices` has the devices that candidates run on, a
processor or a GPU, and their clocks.
"""
