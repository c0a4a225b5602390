"""The installed TVM: its names, versions and runtime library. Only `names` imports TVM."""
