"""Small kernels in tensor expressions, which the tests of the trace schedule."""

from __future__ import annotations

import numpy as np

from needle_runtime.artifact.tolerance import compare, relative_tolerance
from needle_tvm._tvm import names as tvm_names
from needle_tvm._tvm.names import te, tirx


def schedule(*tensors):
    """A new schedule of the PrimFunc over these placeholders and results."""
    return tvm_names.Schedule(te.create_prim_func(list(tensors)))


def vector_add(n, dtype="float32"):
    """C = A + B."""
    a, b = (te.placeholder((n,), dtype, name=name) for name in "AB")
    return schedule(a, b, te.compute((n,), lambda i: a[i] + b[i], name="C"))


def gemm(m, n, k, dtype="float32"):
    """C = A @ B, with A (m, k) and B (k, n)."""
    a = te.placeholder((m, k), dtype, name="A")
    b = te.placeholder((k, n), dtype, name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    return schedule(a, b, c)


def conv1d_inline(m, n):
    """Full convolution of A (m) with W (n); each tap tests for the zeros outside A."""
    a = te.placeholder((m,), "float32", name="A")
    w = te.placeholder((n,), "float32", name="W")
    r = te.reduce_axis((0, n), name="k")

    def tap(i):
        inside = tirx.all(i - r >= 0, i - r < m)
        return tirx.if_then_else(inside, a[i - r] * w[r], tirx.const(0, "float32"))

    return schedule(a, w, te.compute((m + n - 1,), lambda i: te.sum(tap(i), axis=r), name="B"))


def conv1d_padded(m, n):
    """Like `conv1d_inline`, over a padded copy P (m + 2(n - 1)) of A."""
    a = te.placeholder((m,), "float32", name="A")
    w = te.placeholder((n,), "float32", name="W")
    r = te.reduce_axis((0, n), name="k")
    padded = te.compute(
        (m + 2 * (n - 1),),
        lambda i: tirx.if_then_else(
            tirx.all(i >= n - 1, i < m + n - 1), a[i - (n - 1)], tirx.const(0, "float32")
        ),
        name="P",
    )
    b = te.compute((m + n - 1,), lambda i: te.sum(padded[i + n - 1 - r] * w[r], axis=r), name="B")
    return schedule(a, w, b)


def depthwise(channels, height, width, k):
    """ "same" depthwise convolution of X (c, h, w) with W (c, k, k); each tap tests for borders."""
    x = te.placeholder((channels, height, width), "float32", name="X")
    w = te.placeholder((channels, k, k), "float32", name="W")
    dy, dx = te.reduce_axis((0, k), name="dy"), te.reduce_axis((0, k), name="dx")
    half = k // 2

    def tap(c, y, z):
        row, column = y + dy - half, z + dx - half
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        zero = tirx.const(0, "float32")
        return tirx.if_then_else(inside, x[c, row, column], zero) * w[c, dy, dx]

    return schedule(
        x,
        w,
        te.compute(
            (channels, height, width),
            lambda c, y, z: te.sum(tap(c, y, z), axis=[dy, dx]),
            name="Y",
        ),
    )


def transpose(n):
    """B = A.T, both (n, n)."""
    a = te.placeholder((n, n), "float32", name="A")
    return schedule(a, te.compute((n, n), lambda i, j: a[j, i], name="B"))


def shared_gemm(m, n, k, tile, step):
    """A GPU GEMM: a block computes a (tile, tile) part of C from slices of depth `step` in shared
    memory. Its tile x tile threads fetch them together, and each keeps one sum in a register.
    """
    s = gemm(m, n, k)
    block = s.get_sblock("C")
    i, j, r = s.get_loops(block)
    by, ty = s.split(i, [None, tile])
    bx, tx = s.split(j, [None, tile])
    ro, ri = s.split(r, [None, step])
    s.reorder(by, bx, ty, tx, ro, ri)
    for loop, axis in (
        (by, "blockIdx.y"),
        (bx, "blockIdx.x"),
        (ty, "threadIdx.y"),
        (tx, "threadIdx.x"),
    ):
        s.bind(loop, axis)
    s.reverse_compute_at(s.cache_write(block, 0, "local"), tx)
    for operand in range(2):
        copy = s.cache_read(block, operand, "shared")
        s.compute_at(copy, ro)
        fused = s.fuse(*s.get_loops(copy)[-2:])
        _, y, x = s.split(fused, [None, tile, tile])
        s.bind(y, "threadIdx.y")
        s.bind(x, "threadIdx.x")
    s.decompose_reduction(block, ro)
    return s


def random(*shapes, dtype="float32"):
    """Arrays of standard normal numbers, equal at every call."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(dtype) for shape in shapes]


def counts(trace):
    """(buffer, "load" or "store") -> number of accesses."""
    found: dict[tuple[str, str], int] = {}
    for buffer, is_store in zip(trace.buffer.tolist(), trace.is_store.tolist(), strict=True):
        key = (trace.buffers[buffer].name, "store" if is_store else "load")
        found[key] = found.get(key, 0) + 1
    return found


def close(found, exact, terms=1):
    """Whether a float32 result equals the float64 one up to the rounding of sums of `terms`."""
    found = np.reshape(found, np.shape(exact))
    return compare(exact, found, relative_tolerance("float32", terms), same_dtype=False).right
