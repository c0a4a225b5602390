"""The record store: what tuning measured, kept durably and served only where it applies.

`rows` defines what is stored, `sqlite` and `opening` how it is stored on disk, `store` the
operations on it. `database` makes it a database of TVM's meta_schedule. Only `database`, `keys`,
`near` and `exchange` import TVM.
"""
