"""TVM's runtime library: its version, and how it and compiled libraries are loaded.

`ffi` makes each compiled library that it loads use needle's threads.
"""
