"""A PyTorch model in the front end: its programs, signature, example inputs and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle.dims import size_of
from needle_tvm.errors import TranslationError
from needle_tvm.frontend.shapes import Shapes, described_shape
from needle_tvm.frontend.shapes import described as described_dims
from needle_tvm.frontend.torch import export as torch_export
from needle_tvm.frontend.torch.arrays import Array, array
from needle_tvm.frontend.torch.dims import asked
from needle_tvm.frontend.torch.export import Translated
from needle_tvm.frontend.torch.indices import index_ranges
from needle_tvm.frontend.torch.ones import check_ones
from needle_tvm.frontend.torch.structure import Flat

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule
    from needle_tvm.frontend.extents import Extents


@dataclass(frozen=True)
class Taken:
    """An exported PyTorch model: the exported program, its functional form, the Relax module and
    the dims in them, the manifest's signature, and example inputs and weights as NumPy arrays.

    `examples` begins with the given inputs; with dims there are inputs of other sizes.
    """

    translated: Translated
    shapes: Shapes
    signature: dict[str, Any]
    examples: list[list[Array]]
    params: dict[str, Array]

    @property
    def exported(self) -> Any:
        """The exported program."""
        return self.translated.exported

    @property
    def functional(self) -> Any:
        """Its functional form."""
        return self.translated.functional

    def outputs(self, inputs: list[Array]) -> list[dict[str, Any]]:
        """The shapes and dtypes of the outputs for these inputs."""
        found = self.shapes.sizes(inputs)
        sizes = {dim: found[dim.name] for dim in self.shapes.dims}
        extents = self.translated.extents
        return [
            {
                "shape": [size_of(extents.understood(n), sizes) for n in result.shape.values],
                "dtype": str(result.dtype),
            }
            for result in result_types(self.translated.module)
        ]


def take(model: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any], dims: Any = None) -> Taken:
    """Export a model in eval mode, with `dims` as `dims.asked` takes them, and translate it.

    Raises TranslationError if that fails, and UsageError for dims that the model does not have.
    """
    flat = Flat(model, inputs, kwargs)
    torch_export.check(model, flat.placed)
    wanted = asked(flat.names, flat.values, dims)
    tensors = tuple(tensor for _, tensor in flat.tensors)
    translated = torch_export.translate(flat.module, tensors, wanted)
    ranges = index_ranges(translated.exported, translated.symbols)
    signature = _signature(flat, model, translated, ranges)
    state = translated.exported.state_dict
    example = list(map(array, tensors))
    shapes = _shapes(translated, ranges)
    if shapes.dims:
        check_ones(flat.module, translated.exported, shapes, example)
    return Taken(
        translated,
        shapes,
        signature,
        shapes.examples(example),
        {entry["name"]: array(state[entry["name"]]) for entry in signature["params"]},
    )


def _shapes(translated: Translated, ranges: Mapping[str, tuple[Any, Any]]) -> Shapes:
    """The shapes of a program's inputs."""
    program, symbols = translated.exported, translated.symbols
    held = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs
    return Shapes([(name, symbols.shape(held[name].meta["val"])) for name in names], ranges)


def result_types(module: IRModule) -> list[Any]:
    """The types of the tensors that `main` returns."""
    ty = module["main"].ret_ty
    return list(getattr(ty, "fields", [ty]))


def _signature(
    flat: Flat, model: Any, translated: Translated, ranges: Mapping[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """The inputs, parameters and outputs of `main`, in the form of a manifest."""
    exported, module, extents = translated.exported, translated.module, translated.extents
    main, dims = module["main"], described_dims(translated.symbols.dims)
    count = int(main.attrs["num_input"])
    parameters = list(exported.graph_signature.inputs_to_parameters.values())
    if count != len(flat.tensors) or len(main.params) != count + len(parameters):
        raise TranslationError(f"{type(model).__name__}: takes a parameter that is no weight")
    results = result_types(module)
    inputs = [str(variable.name) for variable in main.params[:count]]
    return {
        **({"dims": dims} if dims else {}),
        "inputs": [
            _entry(name, variable.ty, extents)
            | ({"range": described_shape(ranges[name])} if name in ranges else {})
            for name, variable in zip(inputs, main.params[:count], strict=True)
        ],
        "params": [
            _entry(name, variable.ty, extents)
            for name, variable in zip(parameters, main.params[count:], strict=True)
        ],
        "ties": _ties(model),
        "outputs": [described(result, extents) for result in results],
        "bare_output": len(results) == 1,
        "arguments": flat.arguments,
        "output_tree": flat.output_tree,
    }


def _ties(model: Any) -> list[list[str]]:
    """Groups of names that belong to one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _entry(name: str, type_: Any, extents: Extents) -> dict[str, Any]:
    return {"name": name, **described(type_, extents)}


def described(type_: Any, extents: Extents) -> dict[str, Any]:
    """The shape and dtype of a Relax type, as a manifest has them."""
    shape = [extents.understood(extent) for extent in type_.shape.values]
    return {"shape": described_shape(shape), "dtype": str(type_.dtype)}
