"""Translation of PyTorch models to Relax modules, and errors for those that cannot be."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle.dims import Expression
from needle_tvm.errors import NeedleTVMError, TranslationError, UsageError
from needle_tvm.faults import blamed_on
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.dims import Asked
from needle_tvm.frontend.torch.lines import at_line_of, at_line_of_call
from needle_tvm.frontend.torch.nodes import dtype_of
from needle_tvm.frontend.torch.symbols import Symbols, check_guards, symbols_of

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule
    from needle_tvm.frontend.extents import Extents


_DTYPES = frozenset(
    "bool float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 "
    "uint64".split()
)


def check(model: Any, inputs: Sequence[tuple[str, Any]]) -> None:
    """Raise TranslationError for an input (name, tensor) or a weight that compiled code cannot
    hold."""
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


@dataclass(frozen=True)
class Translated:
    """A model's exported program, the functional form of that, the Relax module of this, and the
    dims in both: as symbols of sympy, and as variables of TVM."""

    exported: Any
    functional: Any
    module: IRModule
    symbols: Symbols
    extents: Extents


def translate(model: Any, inputs: tuple[Any, ...], asked: Asked) -> Translated:
    """Translate a model for these inputs, with the dims that are asked for.

    Raises TranslationError if PyTorch does not run the model on these inputs or the model cannot
    be translated, UsageError for dims that it does not have, and CompilationError if the
    translation is at fault.
    """
    import torch

    from needle_tvm.frontend.extents import Extents

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's export warns of its own internals
        sizes = asked.sizes()
        given = tuple(asked.resized(sizes)) if sizes else inputs
        try:
            exported, functional = _exported(model, given, asked)
            symbols = _symbols(model, exported, functional, asked)
            _refuse(model, given, exported, functional, symbols)
            extents = Extents.of(symbols.dims)
            with blamed_on("the translation of PyTorch's program"):
                try:
                    module = to_relax(functional, symbols, extents)
                except (ValueError, NotImplementedError, AssertionError) as error:
                    if _is_of_tvms_core(error):
                        raise
                    raise _not_taken(model, str(error)) from error  # not known to the front end
        except NeedleTVMError:
            _run(model, inputs)  # export misses some dtype errors and words others differently
            _run(model, given, sizes)
            raise
    return Translated(exported, functional, module, symbols, extents)


def _symbols(model: Any, exported: Any, functional: Any, asked: Asked) -> Symbols:
    """The extents of a program's symbols; UsageError if it is not for all sizes of its dims."""
    try:
        symbols = symbols_of(exported, asked)
        check_guards(functional, symbols)
    except UsageError as error:
        written_out = [m for m in (*model.models, *model.modules()) if _is_written_out(m)]
        if not written_out:
            raise
        kind = type(written_out[0]).__name__
        raise UsageError(
            f"{error}; torch.export writes out the steps of nn.{kind}, so their number is fixed"
        ) from error
    return symbols


def _is_written_out(module: Any) -> bool:
    """Whether export writes out the steps of a recurrent layer."""
    import torch

    return isinstance(module, torch.nn.RNNBase) and bool(module.proj_size)


def _run(model: Any, inputs: tuple[Any, ...], sizes: Mapping[str, int] | None = None) -> None:
    """Raise TranslationError if PyTorch does not run a model on these inputs, of these sizes of
    dims. Runs on copies."""
    import torch

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (state, inputs))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.func.functional_call(model, *copies)
    except Exception as error:  # the model's own code may raise anything
        where = ", ".join(f"{name} = {size}" for name, size in (sizes or {}).items())
        where = f"inputs with {where}, which dims allow" if where else "these inputs"
        raise _not_taken(
            model, f"PyTorch itself does not run it on {where} ({_named(error)})"
        ) from error


def _exported(model: Any, inputs: tuple[Any, ...], asked: Asked) -> tuple[Any, Any]:
    """A model's exported program and its functional form."""
    import torch

    from needle_tvm.frontend.torch import bags, grouped, importer, orders, recurrence, strides
    from needle_tvm.frontend.torch import decompositions as torch_decompositions
    from needle_tvm.frontend.torch import ops as torch_ops

    # Export identifies inputs by object: one tensor in two places would be one input, and an input
    # that is also a parameter would be a parameter.
    inputs = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone(), inputs
    )
    try:
        with quiet():
            exported = _recorded(model, inputs, asked)
            taken_apart = {
                **torch_decompositions.DECOMPOSITIONS,
                **orders.DECOMPOSITIONS,
                **strides.DECOMPOSITIONS,
                **recurrence.DECOMPOSITIONS,
                **bags.DECOMPOSITIONS,
                **grouped.DECOMPOSITIONS,
            }
            functional = importer.functional_program(exported, torch_ops.CONVERTERS, taken_apart)
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise _not_taken(
            model,
            "what it does next depends on a tensor's values (an `if`, a loop, an extent or a "
            f"number of Python's){at_line_of(error)}, and compiled code always does the same: "
            "choose among results by torch.where",
        ) from error
    except NeedleTVMError:
        raise
    except Exception as error:  # export has many error types for models that it cannot take
        dims = ", ".join(dim.described() for dim in asked.dims)
        raise _not_taken(
            model, _named(error) + at_line_of(error) + (f", with the dims {dims}" if dims else "")
        ) from error
    return exported, functional


def _recorded(model: Any, inputs: tuple[Any, ...], asked: Asked) -> Any:
    """A model's exported program. One that depends on values is recorded again with the numbers in
    its buffers, and then its constants, known."""
    import torch
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    from needle_tvm.frontend.torch import numbers, replaced

    def recorded(*known: Any) -> Any:
        with contextlib.ExitStack() as active:
            for each in (*known, replaced.replacing()):
                active.enter_context(each)
            return torch.export.export(model, inputs, dynamic_shapes=_hints(asked))

    known = numbers.numbers_of(model)
    try:
        exported = recorded()
        decides = bool(known) and numbers.decides(exported)
        return recorded(numbers.knowing(known)) if decides else exported
    except GuardOnDataDependentSymNode:
        with numbers.following() as outdated:
            exported = recorded(numbers.knowing(known))
        if outdated:
            raise
        return exported


def _hints(asked: Asked) -> Any:
    """`dynamic_shapes` for inputs. Each axis is its own there, so that this package, and not
    PyTorch's pages of text, says which dims a model does not have."""
    from torch.export import Dim

    if not asked.dims:
        return None
    return tuple(
        {
            axis: Dim.AUTO(min=extent.bounds[0], max=extent.bounds[1])
            for axis, extent in enumerate(shape)
            if isinstance(extent, Expression)
        }
        for shape in asked.shapes
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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


def _refuse(
    model: Any, inputs: tuple[Any, ...], exported: Any, functional: Any, symbols: Symbols
) -> None:
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
        line = at_line_of_call(model, inputs, torch_graph.draws)
        raise TranslationError(
            f"{type(model).__name__} draws random numbers ({random.target}){line}, "
            "and compiled code would give the same ones at each call: take them as an input"
        )
    unknown = torch_graph.of_unknown_shape(functional, symbols)
    if unknown is not None:
        line = at_line_of_call(model, inputs, torch_graph.depends_on_values)
        raise TranslationError(
            f"{type(model).__name__} computes a tensor ({unknown.target}) whose shape depends on "
            f"values{line}, and compiled code has fixed shapes: keep all "
            "elements and mark those that count, by torch.where or by a product with the mask"
        )
    if changed is not None:
        raise TranslationError(
            f"{type(model).__name__} writes to its {changed}, and compiled code changes nothing: "
            "return the new value instead"
        )
    if symbols.dims and torch_graph.returned_size(exported):
        raise TranslationError(
            f"{type(model).__name__} returns a size that dims leave open, and compiled code "
            "returns tensors alone: take it from the shape of a result"
        )
    for node in torch_graph.outputs(functional):
        if node.meta["val"].is_complex():
            raise TranslationError(
                f"{type(model).__name__} returns complex numbers, which compiled code does not "
                "hold: return torch.view_as_real of them"
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


def to_relax(functional: Any, symbols: Symbols, extents: Extents) -> IRModule:
    """The Relax module of a functional program."""
    from needle_tvm.frontend.torch import importer
    from needle_tvm.frontend.torch import ops as torch_ops

    converters = torch_ops.converters(functional)
    return importer.from_exported_program(functional, converters, symbols, extents)
