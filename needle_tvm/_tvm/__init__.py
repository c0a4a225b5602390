"""The installed TVM: its names, and what identifies its compiler. Only `names` imports TVM.

`names` has every name that has moved between versions of TVM.
"""
