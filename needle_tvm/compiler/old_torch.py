"""The former `compile_torch`, to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.request import check_dims, request
from needle_tvm.errors import InstallError, StageError, UsageError
from needle_tvm.process.turns import compiling
from needle_tvm.stages import STAGES
from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from needle_tvm.compiler.executable import Executable
    from needle_tvm.compiler.request import Choices


def compile_torch(
    model: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    dims: Mapping[Any, Any] | Sequence[Any] | None = None,
    trusted: bool = False,
    **choices: Unpack[Choices],
) -> Executable:
    """What `compile_torch` was, by TVM's front end: an oracle to compare with."""
    if not isinstance(trusted, bool):
        raise UsageError(f"trusted={trusted!r}: must be True or False")
    asked = request(**choices)
    if dims:
        check_dims(asked)
    if asked.variant.precision != FLOAT32 and asked.stage != STAGES[-1]:
        # The other stages keep layouts that no pass of ours knows.
        raise StageError(
            f"dtype={asked.variant.precision!r}: a PyTorch model takes it at stage 'tuned', not "
            f"{asked.stage!r}"
        )
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    from needle_tvm.frontend.torch.given import module_of
    from needle_tvm.frontend.torch.model import source
    from needle_tvm.frontend.torch.taken import take

    with compiling:
        taken = take(*module_of(model, inputs, kwargs or {}, trusted), dims)
        if taken.shapes.dims:  # also by marks on the inputs
            check_dims(asked)
        taken_source = source(taken, asked.spec, asked.variant)
    return compile_source(taken_source, asked)
