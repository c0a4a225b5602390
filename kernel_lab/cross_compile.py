"""Many GPU rungs compiled at once: most of nvcc's time goes into the headers all of them include.

Every kernel is renamed, and its text marked as a file of the rung's name, so that what nvcc and
ptxas say names the rung.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kernel_lab.errors import LabError
from needle_tvm.errors import CudaCompilerError
from needle_tvm.target import nvcc
from needle_tvm.target.nvcc import Resources

_KERNEL = re.compile(
    r'^extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', re.MULTILINE
)


def compile_together(sources: Mapping[str, str], arch: str) -> dict[str, list[Resources]]:
    """What ptxas says of each source's kernels, by the sources' names.

    `sources` are CUDA texts of TVM's by name (`ir_views.cuda_source`). Raises TargetError where
    there is no nvcc, LabError, naming the source, where one does not compile or has no kernel.
    """
    by_head: dict[str, list[str]] = {}  # TVM defines what a source needs before the kernels
    found: dict[str, list[Resources]] = {name: [] for name in sources}
    prefixes = {f"k{number}__": name for number, name in enumerate(sources)}
    for prefix, name in prefixes.items():
        first = _KERNEL.search(sources[name])
        if first is None:
            raise LabError(f"{name} has no CUDA kernel")
        head, body = sources[name][: first.start()], sources[name][first.start() :]
        for kernel in set(_KERNEL.findall(body)):
            body = re.sub(rf"\b{kernel}\b", prefix + kernel, body)
        by_head.setdefault(head, []).append(f'#line 1 "{name}"\n{body}')
    for head, bodies in by_head.items():
        for one in _resources("\n".join([head, *bodies]), arch, prefixes):
            prefix, kernel = re.match(r"(k\d+__)?(.*)", one.kernel).groups()  # type: ignore[union-attr]
            if prefix in prefixes:
                told = Resources(
                    kernel, one.registers, one.shared, one.spill_stores, one.spill_loads
                )
                found[prefixes[prefix]].append(told)
    return found


def _resources(text: str, arch: str, prefixes: Mapping[str, str]) -> list[Resources]:
    """What ptxas tells about the kernels; LabError with nvcc's errors."""
    try:
        return nvcc.compile_cubin(text, arch)[1]
    except CudaCompilerError as error:
        said = str(error)
    for prefix, name in prefixes.items():
        said = said.replace(f"'{prefix}", f"'{name}: ")
    raise LabError(said)
