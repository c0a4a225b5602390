"""Kernels for Hopper (sm_90a) run without one, for tests: TMA, mbarriers, wgmma and clusters.

The kernel is the CUDA source that TVM generates, compiled as C++; its functions of one PTX
instruction each are replaced by those of hopper.h, and the tensor maps are made from what the
host's part passes to cuTensorMapEncodeTiled. What it does not tell: speed, and whether the memory
model's fences are all there.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np

from needle_tvm._tvm import NODES, nodes_in

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build" / "emulated"
_WORDS = 7  # of a CUtensorMap in hopper.h

_HELPER = re.compile(
    r"^__forceinline__ __device__ ([\w ]+?) (\w+)\(([^)]*)\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
_KERNEL = re.compile(r'^extern "C" __global__ void [^;{]*?(\w+)\(([^)]*)\) \{', re.MULTILINE)

# What each instruction is here, where %s are the function's parameters; None: nothing to do. The
# first whose beginning fits.
_INSTRUCTIONS = {
    "mbarrier.init.": "hopper::init(%s);",
    "mbarrier.arrive.expect_tx.": "hopper::expect(%s);",
    "mbarrier.arrive.": "hopper::arrive(%s);",
    "mbarrier.try_wait.parity.": "hopper::wait(%s);",
    "cp.async.bulk.tensor.2d.shared::cluster.global.": "hopper::load(%s);",
    "cp.async.bulk.tensor.2d.global.shared::cta.": "hopper::store(%s);",
    "cp.async.bulk.commit_group": "hopper::commit_stores();",
    "wgmma.commit_group.": "hopper::commit_products();",
    "wgmma.fence.": None,
    "fence.": None,
    "setmaxnreg.": None,
    "mapa.": "{0} = {2} * hopper::kWindow + {1} % hopper::kWindow;",
    "bar.sync ": "hopper::meet_named(%s);",
    "barrier.cluster.": "hopper::meet_cluster();",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16": "hopper::store_matrices(%s);",
    "cvt.rn.f16x2.": "hopper::pack(%s, false);",
    "cvt.rn.bf16x2.": "hopper::pack(%s, true);",
    "mov.u32 %0, %%cluster_ctarank": "return hopper::g.current->rank;",
}


def compiler() -> str | None:
    """The C++ compiler; None where there is none."""
    return shutil.which("g++") or shutil.which("c++")


def run(function, source, arrays, *, cluster=1, threads=384, seed=0):
    """Runs a kernel of TVM's on NumPy arrays of halves, the last its result.

    `function` is the tirx function, `source` the CUDA that it became. Raises RuntimeError with what
    went wrong: a deadlock, an arrival too many, something not waited for.
    """
    maps = (ctypes.c_int64 * (_WORDS * len(arrays)))()
    encoded = _maps(function)
    assert len(encoded) == len(arrays)
    for i, ((rank, inner, outer, row, box_inner, box_outer, *rest), array) in enumerate(
        zip(encoded, arrays, strict=True)
    ):
        element_strides, (interleave, swizzle, _, fill) = rest[:2], rest[2:]
        assert rank == 2 and element_strides == [1, 1] and interleave == 0 and fill == 0
        assert (outer, inner) == array.shape and row == 2 * inner and array.flags.c_contiguous
        assert row % 16 == 0 and box_inner <= 256 and box_outer <= 256  # cuTensorMapEncodeTiled's
        at = array.ctypes.data
        maps[_WORDS * i : _WORDS * (i + 1)] = [
            at, inner, outer, row, box_inner, box_outer, swizzle == 3,
        ]  # fmt: skip
    said = ctypes.create_string_buffer(256)
    library = ctypes.CDLL(str(_compiled(source)))
    library.run(maps, _blocks(function), cluster, threads, seed, said, len(said))
    if said.value:
        raise RuntimeError(said.value.decode())


def _calls(function, name):
    """The arguments of every call of an operator of that name."""
    return [
        call.args for call in nodes_in(function, NODES.call) if getattr(call.op, "name", "") == name
    ]


def _maps(function):
    """What cuTensorMapEncodeTiled is told after the address: numbers, a list for each matrix."""
    found = []
    for arguments in _calls(function, "tirx.tvm_call_packed"):
        if getattr(arguments[0], "value", "") == "runtime.cuTensorMapEncodeTiled":
            _, _, _, rank, _, *numbers = arguments
            found.append([int(rank), *map(int, numbers)])
    return found


def _blocks(function):
    """How many blocks the kernel is launched with."""
    (found,) = re.findall(r"= T\.cta_id\(\[(\d+)\]\)", function.script())
    return int(found)


def _compiled(source):
    """The library of a kernel: `run` runs it."""
    start = source.index("union GmmaDescriptor")
    kernel = _KERNEL.search(source)
    helpers = _HELPER.sub(_emulated, source[start : kernel.start()])
    helpers = re.sub(r'^extern "C" __global__ .*;$', "", helpers, flags=re.MULTILINE)
    body = re.sub(
        r"extern __shared__ __align__\(1024\) uchar (\w+)\[\];",
        r"uchar* \1 = hopper::shared();",
        source[kernel.start() :],
    )
    name, parameters = kernel.groups()
    maps = ", ".join(f"maps[{i}]" for i in range(parameters.count("CUtensorMap")))
    text = f"""#include "hopper.h"
template <class T> T min(T a, T b) {{ return a < b ? a : b; }}
// Lane 0's warp number is every lane's.
inline int __shfl_sync(unsigned, int value, int, int) {{ return value; }}
{helpers}
{body}
extern "C" void run(CUtensorMap* maps, int blocks, int cluster, int threads, unsigned seed,
                    char* said, size_t length) {{
  hopper::g_kernel = [maps] {{ {name}({maps}); }};
  hopper::g_error.clear();
  try {{
    for (int first = 0; first < blocks; first += cluster)
      hopper::run_cluster(first, cluster, threads, seed + first);
  }} catch (const std::exception& error) {{
    std::strncpy(said, error.what(), length - 1);
  }}
}}
"""
    key = hashlib.sha256(text.encode() + (HERE / "hopper.h").read_bytes()).hexdigest()[:24]
    library = BUILD / f"hopper-{key}.so"
    if not library.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        code = library.with_suffix(".cc")
        code.write_text(text)
        fresh = library.with_suffix(".tmp")
        command = [str(compiler()), "-std=c++17", "-O2", "-fPIC", "-shared", "-w", f"-I{HERE}"]
        done = subprocess.run(
            [*command, "-o", str(fresh), str(code)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{code.name}: {done.stderr[:2000]}")
        fresh.replace(library)
    return library


def _emulated(match):
    """A function of one PTX instruction, emulated; one without any as it is."""
    returns, name, parameters, body = match.groups()
    head = f"inline {returns} {name}({parameters}) "
    names = [part.split()[-1].lstrip("&*") for part in parameters.split(",") if part.strip()]
    found = re.search(r'\basm(?: volatile)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', body)
    if found is None:
        return f"{head}{{ {body.replace('__syncthreads()', 'hopper::meet_block()')} }}"
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))
    if shape := re.search(r"wgmma\.mma_async\S*\.m64n(\d+)k16\.f32\.(b?f16)\.", text):
        columns, bfloat = int(shape[1]), str(shape[2] == "bf16").lower()
        assert text.rstrip("}; ").endswith("1, 1, 0, 1"), "A along k, B along n, neither negated"
        a, b, add = names[-3:]
        # Sums are passed one by one; they are the elements of one array, in its order.
        return f"{head}{{ hopper::multiply(&{names[0]}, {columns}, {bfloat}, {a}, {b}, {add}); }}"
    if wait := re.match(r"(wgmma|cp\.async\.bulk)\.wait_group\S* (\d+);", text):
        kind = "products" if wait[1] == "wgmma" else "stores"
        return f"{head}{{ hopper::wait_{kind}({wait[2]}); }}"
    for beginning, done in _INSTRUCTIONS.items():
        if beginning in text:
            return f"{head}{{ {(done or '').replace('%s', ', '.join(names)).format(*names)} }}"
    raise ValueError(f"an instruction that is not emulated: {text}")


def halves(shape, dtype, seed):
    """Standard normal numbers rounded to a half type, as an array of it."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values.astype(dtype)
