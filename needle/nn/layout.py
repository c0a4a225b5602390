"""PyTorch's names and layouts of a module's tensors, for `state_dict(layout="torch")`.

In needle's layers, the weight is the right operand of a product: the weight of Linear is (in, out),
the weight of a convolution (rows, columns, in, out). In PyTorch they are (out, in) and (out, in,
rows, columns). Each layer declares in `_torch_axes` how PyTorch stores its Parameters (a Parameter
keeps its entry), and in `Module.torch_layout` all other differences. All other names and shapes are
the same in needle and PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from .parameter import Parameter

LAYOUTS = ("needle", "torch")


class Form(NamedTuple):
    """How PyTorch stores a tensor: under `name`, with needle's axes in the order `axes` (None:
    unchanged) and, if `flat`, without the first axis, which has extent 1. For a module, only the
    name counts."""

    name: str
    axes: tuple[int, ...] | None = None
    flat: bool = False

    def shape(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in PyTorch of a tensor whose shape in needle is `own`."""
        own = own if self.axes is None else tuple(own[axis] for axis in self.axes)
        return own[1:] if self.flat else own

    def outgoing(self, tensor: Tensor) -> Tensor:
        """Return `tensor` in PyTorch's layout; the result shares its memory."""
        data = tensor.realize_cached_data()
        if self.axes is not None:
            data = data.permute(self.axes)
        if self.flat:
            data = data.reshape(data.shape[1:])
        return Tensor(data, requires_grad=False)

    def incoming(self, data: NDArray) -> NDArray:
        """Return the values of PyTorch's `data` in needle's layout."""
        if self.flat:
            data = data.reshape((1, *data.shape))
        if self.axes is None:
            return data
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return data.permute(tuple(order)).compact()


class IncompatibleKeys(NamedTuple):
    """Names in the module that `load_state_dict` did not find in the state, and names in the state
    that the module does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Entry(NamedTuple):
    """A tensor of the state under one of its names."""

    name: str
    tensor: Tensor
    form: Form | None  # None: unchanged

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.form is None else self.form.shape(self.tensor.shape)


class HasLayout(Protocol):
    """A Module that declares PyTorch's names and layouts for its tensors."""

    @property
    def torch_unused(self) -> tuple[str, ...]: ...
    def torch_layout(self) -> Layout: ...
    def _contents(self) -> Iterator[tuple[str, Any]]: ...


def check_layout(owner: str, layout: str) -> None:
    """Raise ValueError unless `layout` is known."""
    if layout not in LAYOUTS:
        raise ValueError(f"{owner}: layout {layout!r} is not 'needle' or 'torch'")


def torch_entries(root: HasLayout) -> tuple[list[Entry], set[str]]:
    """Return the tensors of the state under PyTorch's names (a shared tensor under each of its
    names), and the names of the tensors in PyTorch's state that needle does not use."""
    entries: list[Entry] = []
    unused: set[str] = set()
    _add(root, "", {}, (), entries, unused)
    return entries, unused


def _add(
    module: HasLayout,
    prefix: str,
    claims: Mapping[str, Form],
    above: tuple[HasLayout, ...],
    entries: list[Entry],
    unused: set[str],
) -> None:
    """Add the tensors in `module`, whose path in PyTorch is `prefix`. `claims` has the forms, with
    full names, that modules above `module` declare for what is below it, by path from `module`."""
    if any(module is each for each in above):
        return
    own = {path: form._replace(name=prefix + form.name) for path, form in _declared(module)}
    claims = {**own, **claims}
    unused.update(prefix + name for name in module.torch_unused)
    for path, item in module._contents():
        form = claims.get(path)
        if isinstance(item, Tensor):
            form = form or stored(prefix + path, item)
            entries.append(Entry(form.name, item, form))
            continue
        below = f"{prefix}{path}." if form is None else f"{form.name}."
        start = f"{path}."
        inherited = {p[len(start) :]: f for p, f in claims.items() if p.startswith(start)}
        _add(item, below, inherited, (*above, module), entries, unused)


def _declared(module: HasLayout) -> Iterator[tuple[str, Form]]:
    for path, form in module.torch_layout().items():
        yield path, form if isinstance(form, Form) else Form(form)


def stored(name: str, tensor: Tensor) -> Form:
    """Return the form of a tensor under `name`. A Parameter's form has the axes that the Parameter
    stores."""
    axes = tensor._axes if isinstance(tensor, Parameter) else None
    if axes is None or sorted(axes) == list(range(tensor.ndim)):
        return Form(name, axes)
    return Form(name, flat=tensor.ndim == 2)


def transposed(name: str) -> Form:
    """Return the form of a matrix (in, out) that is (out, in) in PyTorch."""
    return Form(name, (1, 0))


Layout = Mapping[str, Any]  # a Form, or only a name, by path from the module
