"""Loads TVM's runtime library, checks its version, and loads compiled libraries.

`ffi` makes each compiled library that it loads use needle's threads.
"""
