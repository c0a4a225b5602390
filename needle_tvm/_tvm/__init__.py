"""The installed TVM: its names, and its compiler's identity. Only `names` imports TVM.

`names` has every name that has moved between versions of TVM.
"""
