"""`make gpu-test` and `make gpu-bench`: tests and benchmarks on a machine with a GPU.

They run on a bare host: until TVM is at hand (`.gpu/setup.sh` unpacks it without a network) and
needle's native modules are built, only the standard library is imported.
"""
