"""The record store: what tuning measured, kept durably and served only where it belongs.

`rows` says what is kept, `sqlite` and `opening` how it lies on disk, `store` what can be done with
it, `database` puts it behind TVM's meta_schedule, and `command` behind the command line. Of these
only `database`, `keys` and `exchange` import TVM, and only when they are used.
"""
