"""Modules of symbolic extents: built by hand, compiled at a stage, and run at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from needle_runtime._tvm.ffi import load_library
from needle_tvm._tvm.names import IRModule, TensorType, relax, tirx
from needle_tvm.lower import build
from needle_tvm.lower.variant import Variant
from needle_tvm.target.spec import resolve
from needle_tvm.tir.extents import LOWER, UPPER

HOST = resolve("cpu", 2).to_tvm()

# One row, a few, tile sizes and their neighbours, primes.
SIZES = (1, 2, 3, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33, 64)


def variable(name: str) -> Any:
    return tirx.Var(name, "int64")


def module_of(
    function: Callable[..., Any],
    *shapes: Sequence[Any],
    params: int = 0,
    dtypes: Sequence[str] = (),
    least: dict[str, int] | None = None,
    most: dict[str, int] | None = None,
) -> IRModule:
    """A module whose `main` is `function(emit, *arguments)` of Relax expressions. The last `params`
    of its arguments are parameters."""
    builder = relax.BlockBuilder()
    types = [*dtypes, *["float32"] * (len(shapes) - len(dtypes))]
    arguments = [
        relax.Var(f"x{n}", TensorType(shape, dtype))
        for n, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    ]
    attributes: dict[str, Any] = {"num_input": len(shapes) - params}
    if least is not None:
        attributes[LOWER] = least
    if most is not None:
        attributes[UPPER] = most
    with builder.function("main", arguments, attrs=attributes):
        with builder.dataflow():
            result = builder.emit_output(function(builder.emit, *arguments))
        builder.emit_func_output(result)
    return builder.get()


def layers(emit: Callable[..., Any], x: Any, *weights: Any) -> Any:
    """Linear layers with ReLU, of pairs of a weight and a bias."""
    for w, bias in zip(weights[::2], weights[1::2], strict=True):
        x = emit(relax.op.nn.relu(emit(relax.op.add(emit(relax.op.matmul(x, w)), bias))))
    return x


def lowered(module: IRModule, stage: str = "tuned", disable: Sequence[str] = ()) -> IRModule:
    module = build.lower_module(module, HOST, Variant(stage=stage, disable=disable))
    return build.schedule(module, HOST, stage, disable)


def functions_of(module: IRModule) -> set[str]:
    return {variable.name_hint for variable in module.get_global_vars()}


class Compiled:
    """A compiled module, called with NumPy arrays: the inputs, then the parameters."""

    def __init__(
        self, module: IRModule, folder: Path, stage: str = "tuned", disable: Sequence[str] = ()
    ) -> None:
        self._inputs = int(module["main"].attrs["num_input"])
        self.module = lowered(module, stage, disable)
        folder.mkdir(exist_ok=True)
        build.write_library(self.module, HOST, folder)
        self._machine = load_library((folder / "lib.so").read_bytes())["vm_load_executable"]()
        self._machine["vm_initialization"](1, 0, 2)

    def __call__(self, *arrays: Any) -> Any:
        tensors = [_aligned(array) for array in arrays]
        weights: Sequence[Any] = tensors[self._inputs :]
        if build.TRANSFORM in functions_of(self.module):
            weights = list(self._machine[build.TRANSFORM](weights))
        return np.from_dlpack(self._machine["main"](*tensors[: self._inputs], *weights)).copy()


def _aligned(array: Any) -> Any:
    """A copy of an array as the virtual machine takes it."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return tvm_ffi.from_dlpack(copy)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")
