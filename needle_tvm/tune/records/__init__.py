"""The record store: what tuning measured, kept durably and served only where it belongs.

`rows` says what is kept, `sqlite` and `opening` how it lies on disk, `store` what can be done with
it. `database` puts it behind TVM's meta_schedule. Of these only `database`, `keys`, `near` and
`exchange` import TVM.
"""
