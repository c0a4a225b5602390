"""The installed TVM: its names, versions and runtime library. Only `names` imports TVM.

`names` has every name that has moved between versions of TVM. `ffi` loads the runtime library, and
makes each compiled library that it loads use needle's threads.
"""
