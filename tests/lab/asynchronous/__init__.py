"""GPU kernels with asynchronous instructions run without a GPU, for tests.

cp.async, and of Hopper (sm_90a) the TMA, mbarriers, wgmma and clusters. The kernel is the CUDA
source that TVM generates, compiled as C++; its functions of one PTX instruction each are replaced
by those of asynchronous.h, which do what is asynchronous as late as the PTX ISA allows. Tensor maps
are made from what the host's part passes to cuTensorMapEncodeTiled. What this does not tell: speed,
and whether the memory model's fences are all there.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

from needle_tvm.tir.functions import NODES, nodes_in

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[2] / "build" / "emulated"
_WORDS = 7  # of a CUtensorMap in asynchronous.h

_HELPER = re.compile(
    r"^__forceinline__ __device__ ([\w ]+?) (\w+)\(([^)]*)\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
_ASM = re.compile(r'\basm(?: volatile)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)(.*?)\);', re.DOTALL)
_KERNEL = re.compile(
    r'^extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\) \{', re.MULTILINE
)
_STATIC = re.compile(r"__shared__ alignas\(\d+\) (\w+) (\w+)\[(\d+)\];")
_DYNAMIC = re.compile(r"extern __shared__ __align__\(1024\) uchar (\w+)\[\];")

# What each instruction is here, where %s are the function's parameters; nothing for some. The first
# whose text is in the instruction's.
_INSTRUCTIONS = {
    "mbarrier.init.": "late::init(%s);",
    "mbarrier.arrive.expect_tx.": "late::expect(%s);",
    "mbarrier.arrive.": "late::arrive(%s);",
    "mbarrier.try_wait.parity.": "late::wait(%s);",
    "cp.async.bulk.tensor.2d.shared::cluster.global.": "late::load(%s);",
    "cp.async.bulk.tensor.2d.global.shared::cta.": "late::store(%s);",
    "cp.async.bulk.commit_group": "late::commit_stores();",
    "cp.async.commit_group": "late::commit_fetches();",
    "wgmma.commit_group.": "late::commit_products();",
    "wgmma.fence.": "",
    "fence.": "",
    "setmaxnreg.": "",
    "mapa.": "{0} = {2} * late::kWindow + {1} % late::kWindow;",
    "bar.sync ": "late::meet_named(%s);",
    "barrier.cluster.": "late::meet_cluster();",
    "stmatrix.sync.aligned.m8n8.x4.shared.b16": "late::store_matrices(%s);",
    "cvt.rn.f16x2.": "late::pack(%s, false);",
    "cvt.rn.bf16x2.": "late::pack(%s, true);",
    "mov.u32 %0, %%cluster_ctarank": "return late::g.current->rank;",
}


def compiler() -> str | None:
    """The C++ compiler; None where there is none."""
    return shutil.which("g++") or shutil.which("c++")


def run(source, arrays, *, grid, block, cluster=1, maps=(), seed=0, optimise=1):
    """Runs the kernel of CUDA source that TVM generated on NumPy arrays, by their names.

    `grid` and `block` are numbers of blocks and threads along x and y, `maps` what `encoded` gives,
    `optimise` the compiler's level: where a kernel is long and its work short, 0 is quicker.
    Raises RuntimeError with what went wrong: a deadlock, an arrival too many, something not waited
    for.
    """
    told = dict(maps)
    name, parameters = _KERNEL.search(source).groups()
    words, given = [], []
    for parameter in parameters.split(","):
        kind, _, variable = parameter.strip().rpartition(" ")
        array = arrays[variable.rpartition("_")[0].upper()]
        assert array.flags.c_contiguous
        if "CUtensorMap" in kind:
            given.append(f"*reinterpret_cast<CUtensorMap*>(words + {len(words)})")
            words += _map(told[variable.rpartition("_")[0].upper()], array)
        else:
            given.append(
                f"reinterpret_cast<{kind.replace('__restrict__', '')}>(words[{len(words)}])"
            )
            words.append(array.ctypes.data)
    library = ctypes.CDLL(str(_compiled(source, f"{name}({', '.join(given)})", optimise)))
    said = ctypes.create_string_buffer(256)
    numbers = (ctypes.c_int * 6)(*grid, *block, cluster, seed)
    library.run((ctypes.c_int64 * len(words))(*words), numbers, said, len(said))
    if said.value:
        raise RuntimeError(said.value.decode())


def encoded(function):
    """(name of a matrix, what cuTensorMapEncodeTiled is told of it behind its address), of all."""
    found = []
    for call in nodes_in(function, NODES.call):
        arguments = call.args
        if (
            getattr(call.op, "name", "") == "tirx.tvm_call_packed"
            and getattr(arguments[0], "value", "") == "runtime.cuTensorMapEncodeTiled"
        ):
            variable, _, rank, _, *numbers = arguments[1:]
            name = str(variable).rpartition("_")[0].upper()
            found.append((name, [int(rank), *map(int, numbers)]))
    return found


def _map(told, array):
    """A CUtensorMap of asynchronous.h; the rules are cuTensorMapEncodeTiled's."""
    rank, inner, outer, row, box_inner, box_outer, *rest = told
    element_strides, (interleave, swizzle, _, fill) = rest[:2], rest[2:]
    assert rank == 2 and element_strides == [1, 1] and interleave == 0 and fill == 0
    assert (outer, inner) == array.shape and row == 2 * inner and array.itemsize == 2
    assert row % 16 == 0 and box_inner <= 256 and box_outer <= 256
    return [array.ctypes.data, inner, outer, row, box_inner, box_outer, swizzle == 3]


def _compiled(source, call, optimise):
    """The library of a kernel: `run` runs it."""
    kernel = _KERNEL.search(source)
    starts = [source.find(text) for text in ("union GmmaDescriptor", "__forceinline__ __device__")]
    helpers = source[min((s for s in starts if s >= 0), default=kernel.start()) : kernel.start()]
    helpers = re.sub(r'^extern "C" __global__ .*;$', "", helpers, flags=re.MULTILINE)
    offset = 0

    def static(match):
        nonlocal offset
        kind, name, count = match.groups()
        assert kind == "float"
        place, offset = offset, -(-(offset + 4 * int(count)) // 64) * 64
        return f"auto* {name} = reinterpret_cast<{kind}*>(late::shared() + {place});"

    body = _STATIC.sub(static, source[kernel.start() :])
    body = _DYNAMIC.sub(r"uchar* \1 = late::shared();", body)
    text = f"""#include "asynchronous.h"
template <class T> T min(T a, T b) {{ return a < b ? a : b; }}
{_HELPER.sub(_emulated, helpers)}
{body}
extern "C" void run(int64_t* words, const int* n, char* said, size_t length) {{
  late::g_kernel = [words] {{ {call}; }};
  late::g_error.clear();
  const Place shape = {{unsigned(n[2]), unsigned(n[3]), 1}};
  try {{
    for (unsigned y = 0; y < unsigned(n[1]); ++y)
      for (unsigned x = 0; x < unsigned(n[0]); x += n[4])
        late::run_cluster({{x, y, 0}}, n[4], shape, unsigned(n[5]) + x);
  }} catch (const std::exception& error) {{
    std::strncpy(said, error.what(), length - 1);
  }}
}}
"""
    key = hashlib.sha256(text.encode() + (HERE / "asynchronous.h").read_bytes()).hexdigest()[:24]
    library = BUILD / f"asynchronous-{key}.so"
    if not library.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        code = library.with_suffix(".cc")
        code.write_text(text)
        fresh = library.with_suffix(".tmp")
        command = [str(compiler()), "-std=c++17", f"-O{optimise}", "-fPIC", "-shared", "-w"]
        done = subprocess.run(
            [*command, f"-I{HERE}", "-o", str(fresh), str(code)],
            capture_output=True,
            text=True,
            check=False,
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
    found = _ASM.search(body)
    if found is None:
        return f"{head}{{ {body} }}"
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))
    if re.match(r"cp\.async\.c[ag]\.shared\.global ", text):
        size = re.search(r'"n"\((\d+)\)', found[2])[1]
        place, origin = re.findall(r'"[rl]"\((\w+)\)', found[2])
        return f"{head}{{ {_ASM.sub(f'late::fetch({place}, {origin}, {size});', body)} }}"
    if shape := re.search(r"wgmma\.mma_async\S*\.m64n(\d+)k16\.f32\.(b?f16)\.", text):
        columns, bfloat = int(shape[1]), str(shape[2] == "bf16").lower()
        assert text.rstrip("}; ").endswith("1, 1, 0, 1"), "A along k, B along n, neither negated"
        a, b, add = names[-3:]
        # Sums are passed one by one; they are the elements of one array, in its order.
        return f"{head}{{ late::multiply(&{names[0]}, {columns}, {bfloat}, {a}, {b}, {add}); }}"
    if wait := re.match(r"(wgmma|cp\.async\.bulk|cp\.async)\.wait_group\S* (\d+);", text):
        kind = {"wgmma": "products", "cp.async.bulk": "stores", "cp.async": "fetches"}[wait[1]]
        return f"{head}{{ late::wait_{kind}({wait[2]}); }}"
    for part, done in _INSTRUCTIONS.items():
        if part in text:
            return f"{head}{{ {done.replace('%s', ', '.join(names)).format(*names)} }}"
    raise ValueError(f"an instruction that is not emulated: {text}")
