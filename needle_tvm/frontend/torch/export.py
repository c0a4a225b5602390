"""Translation of PyTorch models to Relax modules, and errors for those that cannot be."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from needle_tvm.errors import NeedleTVMError, TranslationError
from needle_tvm.faults import blamed_on
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.nodes import dtype_of

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule


_DTYPES = frozenset(
    "bool float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 "
    "uint64".split()
)


def check(model: Any, inputs: Sequence[tuple[str, Any]]) -> None:
    """Raise TranslationError for a TorchScript model, and for an input (name, tensor) or a weight
    that compiled code cannot hold."""
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        raise TranslationError(
            f"model is a {type(model).__name__}: give the module it was scripted or traced from"
        )
    parameters = [(f"parameter {name!r}", each) for name, each in model.named_parameters()]
    buffers = [(f"buffer {name!r}", each) for name, each in model.named_buffers()]
    for name, tensor in (*inputs, *parameters, *buffers):
        reason = _unreadable(tensor)
        if reason is not None:
            raise TranslationError(f"{name} is {reason}")


def _unreadable(tensor: Any) -> str | None:
    """Describe why compiled code cannot hold a tensor; None if it can."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        return "not initialized: call the model once first"
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        return f"a tensor that is {kind}, and only dense ones are taken"
    if tensor.is_meta:
        return "a tensor on the device 'meta', which holds no values"
    if dtype_of(tensor) not in _DTYPES:
        return f"of {tensor.dtype}, which compiled code does not hold"
    return None


def translate(model: Any, inputs: tuple[Any, ...]) -> tuple[IRModule, Any, Any]:
    """Return the Relax module, the exported program, and its functional form, which was translated.

    Raises TranslationError if PyTorch does not run the model on these inputs or the model cannot
    be translated, and CompilationError if the translation is at fault.
    """
    import torch

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's export warns of its own internals
        try:
            exported, functional = _exported(model, inputs)
            _refuse(model, functional)
            with blamed_on("the translation of PyTorch's program"):
                try:
                    return to_relax(functional), exported, functional
                except (ValueError, NotImplementedError, AssertionError) as error:
                    if _is_of_tvms_core(error):
                        raise
                    raise _not_taken(model, str(error)) from error  # not known to the front end
        except NeedleTVMError:
            _run(model, inputs)  # export misses some dtype errors and words others differently
            raise


def _run(model: Any, inputs: tuple[Any, ...]) -> None:
    """Raise TranslationError if PyTorch does not run a model on these inputs. Runs on copies."""
    import torch

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (state, inputs))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.func.functional_call(model, *copies)
    except Exception as error:  # the model's own code may raise anything
        raise _not_taken(
            model, f"PyTorch itself does not run it on these inputs ({_named(error)})"
        ) from error


def _exported(model: Any, inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """A model's exported program and its functional form."""
    import torch

    from needle_tvm.frontend.torch import decompositions as torch_decompositions
    from needle_tvm.frontend.torch import importer
    from needle_tvm.frontend.torch import ops as torch_ops

    # Export identifies inputs by object: one tensor in two places would be one input, and an input
    # that is also a parameter would be a parameter.
    inputs = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone(), inputs
    )
    try:
        with _quiet():
            exported = torch.export.export(model, inputs)
            functional = importer.functional_program(
                exported, torch_ops.CONVERTERS, torch_decompositions.DECOMPOSITIONS
            )
        if any(torch_graph.fixed(functional)):
            functional = torch_graph.returning(functional, torch_graph.outputs(functional))
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise _not_taken(
            model,
            "what it does next depends on a tensor's values (an `if`, a loop, an extent or a "
            "number of Python's), and compiled code always does the same: choose among results by "
            "torch.where",
        ) from error
    except Exception as error:  # export has many error types for models that it cannot take
        raise _not_taken(model, _named(error)) from error
    return exported, functional


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence export, which logs and prints whole graphs for errors that it also raises."""

    def nothing(_: logging.LogRecord) -> bool:
        return False

    loggers = [
        logging.getLogger(name)
        for name in logging.root.manager.loggerDict
        if name.startswith("torch")
    ]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    for handler in handlers:
        handler.addFilter(nothing)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(nothing)


def _refuse(model: Any, functional: Any) -> None:
    """Raise TranslationError for a program whose behaviour compiled code could not reproduce."""
    changed, random = torch_graph.changed(functional), torch_graph.random(functional)
    if random is not None or changed is not None:
        for name, module in model.named_modules():
            if module.training:
                raise _not_taken(
                    model,
                    f"its module {name!r} ({type(module).__name__}) is in training mode: call "
                    "model.eval() first",
                )
    if random is not None:
        raise TranslationError(
            f"{type(model).__name__} draws random numbers ({random}), and compiled code would give "
            "the same ones at each call: take them as an input"
        )
    unknown = torch_graph.of_unknown_shape(functional)
    if unknown is not None:
        raise TranslationError(
            f"{type(model).__name__} computes a tensor ({unknown}) whose shape depends on values, "
            "and compiled code has fixed shapes: keep all elements and mark those that count"
        )
    if changed is not None:
        raise TranslationError(
            f"{type(model).__name__} writes to its {changed}, and compiled code changes nothing: "
            "return the new value instead"
        )
    if not torch_graph.outputs(functional):
        raise TranslationError(f"{type(model).__name__} returns no tensor")


def _is_of_tvms_core(error: Exception) -> bool:
    """Whether C++ raised the error: its checks concern the translation and not the model."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code.co_filename.endswith((".h", ".cc"))


def _not_taken(model: Any, reason: str) -> TranslationError:
    return TranslationError(f"{type(model).__name__}: {reason}")


def _named(error: Exception) -> str:
    """The type and the first line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def to_relax(functional: Any) -> IRModule:
    """The Relax module of a functional program."""
    from needle_tvm.frontend.torch import importer
    from needle_tvm.frontend.torch import ops as torch_ops

    return importer.from_exported_program(functional, torch_ops.converters(functional))
