"""Tests and benchmarks on a machine with a GPU, prepared on one without.

Until the bundle is unpacked (`host.py`), only the standard library is imported.

`plan` lists the contests, `bundle` compiles and packs them here, `host` unpacks them on the GPU's
machine, `smoke` and `measure` run them (`make gpu-bench`), `tests.gpu_suite` runs tests there
(`make gpu-test`), and `page` makes the page. docs/gpu.md tells how they are run.
"""
