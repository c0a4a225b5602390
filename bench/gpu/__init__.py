"""Tests and benchmarks on a machine with a GPU, prepared on a machine without one.

Until the bundle is unpacked (`host.py`), only the standard library is imported.

`plan` lists the contests. `bundle` compiles and packs them here; `host` unpacks them on the GPU's
machine, where `smoke` and `measure` run them (`make gpu-bench`) and `tests.gpu_suite` runs tests
(`make gpu-test`). `page` writes the page. docs/gpu.md explains how to run them.
"""
