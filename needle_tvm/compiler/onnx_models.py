"""`compile_onnx`: from an ONNX file to checked and cached code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from needle.errors import DimError, ModelError, ShapeError, TraceError
from needle_runtime.errors import InstallError, NeedleTVMError, UsageError
from needle_tvm.compiler.compiler import compile
from needle_tvm.errors import TranslationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from needle_tvm.compiler.executable import Executable
    from needle_tvm.compiler.request import Choices


def compile_onnx(
    model: Any,
    *inputs: Any,
    dims: Mapping[Any, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
    **choices: Unpack[Choices],
) -> Executable:
    """Compile an ONNX `model`: a path or an `onnx.ModelProto`. `choices` are as in `compile`.

    `inputs` are example arrays in the graph's order, or one dict of them by name. Missing inputs
    are drawn from the shapes that the graph declares: floats are standard normal, integers 0 or 1.
    A size that the graph does not fix is taken from the given inputs; `dims` leaves it open, as
    for `compile`. A key of `dims` may also be the model's own name for a size, which stands for
    all axes with that name: `{"batch": needle.Dim("batch", max=64)}`. `fixed` maps names of inputs
    to values that never change; the compiled model does not take these inputs.

    The result takes arrays in the graph's order or by name, and returns the graph's outputs: one
    Tensor, or a tuple. Inputs, outputs and weights have their ONNX names (floating initialisers
    with at least one axis are weights).

    Raises InstallError without the package `onnx`, and the errors of `compile`. Raises
    TranslationError, which is a UsageError, for a file that is damaged or not valid ONNX, or that
    has operators or dtypes unknown to needle (the error lists all operators). Raises UsageError for
    inputs or dims that do not fit the graph, and for a model that fails on its inputs, for example
    because a constant index is out of range.
    """
    import needle.onnx
    from needle.onnx.examples import axes_of_dims, by_name, examples

    try:
        module = needle.onnx.load(model, fixed)
        declared = module.graph_inputs
        axes = axes_of_dims(declared, dims or {})
        arrays = examples(declared, by_name(declared, inputs), axes)
        return compile(module, *arrays, dims=axes or None, **choices)
    except (NeedleTVMError, TraceError, DimError):
        raise
    except (IndexError, ShapeError, ArithmeticError) as error:  # raised by ops on the inputs
        raise UsageError(f"the model fails on its inputs: {error}") from error
    except ImportError as error:
        raise InstallError(str(error)) from error
    except ModelError as error:
        raise TranslationError(str(error)) from error
