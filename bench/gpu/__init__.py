"""`make gpu-test` and `make gpu-bench`: what is tested and measured on a machine with a GPU.

For a bare host: until TVM is at hand (`.gpu/setup.sh` unpacks it without a network) the standard
library alone is imported.
"""
