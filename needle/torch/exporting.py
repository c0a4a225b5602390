"""Export a PyTorch model as a functional program of operators that needle has."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import DimError, ModelError, UnsupportedError
from ..sizes.dims import Expression
from . import aliases, complexes, functionalize, known_numbers, recurrence, registry, strided
from .decompositions import own_decompositions
from .dims import Asked
from .nodes import live_nodes, name_of
from .program import Program
from .reading import program_of
from .refusals import first_line, not_taken, reason_of
from .shared_state import check_apart
from .silence import no_warnings
from .source_lines import at_line_of, at_line_of_call, draws, has_shape_of_values
from .symbols import Symbols, check_guards, symbols_of


def exported_program(model: Any, inputs: tuple[Any, ...], asked: Asked) -> tuple[Any, Program]:
    """Return the functional `ExportedProgram` of a `Flat.module` for these `inputs`, and the
    `Program` that needle runs.

    Raises ModelError if PyTorch does not run the model on these inputs or at other sizes of the
    dims; UnsupportedError if the model cannot be exported or an operator has no converter; DimError
    for dims that the model cannot leave open.
    """
    import torch

    with no_warnings(), torch.no_grad():  # PyTorch's export warns about its own internals
        sizes = asked.sizes()
        examples = tuple(asked.resized(sizes)) if sizes else inputs
        try:
            functional = _exported(model, examples, asked)
            symbols = symbols_of(functional, asked)
            check_guards(functional, symbols)
            _refuse(model, examples, functional, symbols)
            try:
                return functional, program_of(functional, symbols)
            except UnsupportedError as error:
                raise not_taken(model, str(error)) from error
        except (ModelError, DimError):
            _run(model, inputs)  # export misses some dtype errors and words others differently
            _run(model, examples, sizes)
            raise


def _exported(model: Any, inputs: tuple[Any, ...], asked: Asked) -> Any:
    """Return a model's exported program in its functional form."""
    import torch

    # Export identifies inputs by object: one tensor given twice would be one input, and an input
    # that is also a parameter would be a parameter.
    inputs = torch.utils._pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone(), inputs
    )
    try:
        with quiet():
            return functional_program(_recorded(model, inputs, asked))
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as error:
        raise not_taken(
            model,
            "its control flow depends on a tensor's values (an `if`, a loop, an extent or a "
            f"Python number){at_line_of(error)}, and a traced model always takes the same path: "
            "select results with torch.where",
        ) from error
    except (ModelError, DimError):
        raise
    except Exception as error:  # export has many error types for models that it does not support
        if isinstance(error, AssertionError) and "compiled_fn" in str(error):
            check_apart(model)  # export asserts that written tensors share no memory
        dims = ", ".join(dim.described() for dim in asked.dims)
        raise not_taken(
            model,
            reason_of(error) + at_line_of(error) + (f", with the dims {dims}" if dims else ""),
        ) from error


def _recorded(model: Any, inputs: tuple[Any, ...], asked: Asked) -> Any:
    """Return a model's exported program. If the export fails because the model depends on values,
    repeat it with known values for the numbers in the model's buffers."""
    import torch
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    def recorded(*known: Any) -> Any:
        with contextlib.ExitStack() as active:
            for each in (recurrence.whole(), *known):
                active.enter_context(each)
            return torch.export.export(model, inputs, dynamic_shapes=_hints(asked))

    known = known_numbers.numbers_of(model)
    try:
        exported = recorded()
        decides = bool(known) and known_numbers.decides(exported)
        return recorded(known_numbers.knowing(known)) if decides else exported
    except GuardOnDataDependentSymNode:
        with known_numbers.following() as outdated:
            exported = recorded(known_numbers.knowing(known))
        if outdated:
            raise
        return exported


def _hints(asked: Asked) -> Any:
    """Return the `dynamic_shapes` of the inputs. Each axis is a separate dim, so that needle can
    report unusable dims in one line instead of PyTorch's pages of text."""
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


def functional_program(exported: Any) -> Any:
    """Return an exported program without in-place writes. PyTorch decomposes operators without a
    converter, if it can."""
    from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

    composed = aliases.restored(exported)
    if not composed and functionalize.functionalized(exported):
        return exported
    table = decompositions()
    if composed:
        table = {**table, **{each: _composite()[each] for each in composed}}
    # PyTorch orders checks of values (`aten._linalg_check_errors`) by tokens, which are additional
    # inputs that are not tensors.
    return _remove_effect_tokens(exported.run_decompositions(table))


@functools.cache
def decompositions() -> Mapping[Any, Any]:
    """Return PyTorch's decompositions of the operators that have no converter. An operator with a
    converter for only real or only complex numbers is decomposed for the other kind."""
    import torch
    from torch._decomp import decomposition_table

    rules = {}
    for target, rule in {
        **decomposition_table,
        **_composite(),
        **own_decompositions(),
    }.items():
        if not isinstance(target, torch._ops.OpOverload):
            continue
        real, complex_ = has_converter(target), complexes.knows(name_of(target))
        if real != complex_:
            rules[target] = functools.partial(_decomposed, rule, real)
        elif not real:
            rules[target] = rule
    return rules | strided.decompositions()


def _decomposed(rule: Any, if_complex: bool, *args: Any, **kwargs: Any) -> Any:
    """Decompose an operator if its arguments are complex (with `if_complex`) or real (without).
    Otherwise return NotImplemented, which leaves the operator whole."""
    if _is_complex((args, kwargs)) is not if_complex:
        return NotImplemented
    return rule(*args, **kwargs)


def _is_complex(arguments: Any) -> bool:
    import torch

    return any(
        isinstance(each, complex)
        or (isinstance(each, torch.Tensor) and each.is_complex())
        or (isinstance(each, torch.dtype) and each.is_complex)
        for each in torch.utils._pytree.tree_leaves(arguments)
    )


def _composite() -> dict[Any, Any]:
    """Return PyTorch's default table, which decomposes composite operators."""
    import torch

    return dict(torch.export.default_decompositions().items())


def has_converter(target: Any) -> bool:
    """Return whether an operator has a converter."""
    return registry.find(name_of(target)) is not None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence export, which logs and prints whole graphs in addition to raising its errors."""

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


def _refuse(model: Any, inputs: Sequence[Any], functional: Any, symbols: Symbols) -> None:
    """Raise UnsupportedError for a program whose results needle could not reproduce."""
    import torch

    graphs = [each.graph for each in functional.graph_module.modules() if hasattr(each, "graph")]
    for node in (node for graph in graphs for node in live_nodes(graph)):
        if node.op != "call_function":
            continue
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random and not has_converter(node.target):  # dropout has a converter: it may do nothing
            line = at_line_of_call(model, inputs, draws)
            raise not_taken(
                model,
                f"it draws random numbers ({node.target}){line}, but a traced model would "
                f"return the same numbers at each call: {_instead_of_drawing(model)}",
            )
        value = node.meta.get("val")
        for part in value if isinstance(value, (tuple, list)) else [value]:
            extents = getattr(part, "shape", ())
            if not all(map(symbols.knows, extents)):
                line = at_line_of_call(model, inputs, has_shape_of_values)
                raise not_taken(
                    model,
                    f"it computes a tensor ({node.target}) whose shape depends on values"
                    f"{line}, but a traced model has fixed shapes: keep all elements and "
                    "select with torch.where or multiply by a mask",
                )
    outputs = [
        each for each in functional.graph_signature.output_specs if each.kind.name == "USER_OUTPUT"
    ]
    if any(type(each.arg).__name__ == "SymIntArgument" for each in outputs):
        raise not_taken(
            model,
            "it returns a size that dims leave open, but a traced model returns only tensors: "
            "read the size from the shape of a result",
        )
    if not any(type(each.arg).__name__ == "TensorArgument" for each in outputs):
        raise not_taken(model, "it returns no tensor")


def _instead_of_drawing(model: Any) -> str:
    own, *inner = model.modules()
    training = any(each.training for each in (*getattr(own, "models", (own,)), *inner))
    return (
        "call model.eval() first, or take them as an input"
        if training
        else ("take them as an input")
    )


def _run(model: Any, inputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> None:
    """Raise ModelError if PyTorch cannot run a model on these inputs, whose dims have these sizes.
    The model runs on copies."""
    import torch

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (state, tuple(inputs)))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.func.functional_call(model, *copies)
    except ModelError:
        raise
    except Exception as error:  # the model's own code may raise anything
        where = ", ".join(f"{name} = {size}" for name, size in (sizes or {}).items())
        where = f"inputs with {where}, which dims allow" if where else "these inputs"
        raise ModelError(
            f"{type(model).__name__}: PyTorch itself does not run it on {where} "
            f"({first_line(error)})"
        ) from error
