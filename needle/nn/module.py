"""Module: parameters, sub-modules and a forward function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from ..autograd.tensor import Tensor
from ..backend_ndarray import Device, NDArray
from ..backend_ndarray.masked import refuse_masked
from ..common.state import note_replaced, state
from . import hooks
from .assignment import check_assigned
from .converting import Converting, Found, once
from .layout import Entry, IncompatibleKeys, Layout, check_layout, torch_entries
from .parameter import Parameter


class Module(Converting):
    """Base class of all modules: assign parameters and sub-modules in `__init__`, and define
    `forward`.

    A module finds Parameters and sub-modules in its attributes, and in lists, tuples and dicts in
    them. Other Tensors in attributes whose names do not begin with "_" are buffers, which are saved
    but not learned. As in PyTorch, a Parameter may be replaced by a Parameter or None, a Module by
    a Module or None, and a registered buffer by a Tensor or None; any other assignment to them
    raises TypeError.
    """

    training: bool
    torch_unused: ClassVar[tuple[str, ...]] = ()  # names in PyTorch's state that needle ignores
    _hooks: tuple[hooks.Hook, ...] = ()
    _unsaved: frozenset[str] = frozenset()  # buffers that are not part of the state
    _parameter_names: frozenset[str] = frozenset()  # names of Parameters, even while they are None
    _buffer_names: frozenset[str] = frozenset()
    _torch_axes: ClassVar[Mapping[str, tuple[int, ...]]] = {}  # see Parameter

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the module."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = state.trace
        if trace is None:
            if self._hooks:
                return hooks.call(self, args, kwargs)
            return self.forward(*args, **kwargs)
        with trace.entered(self):
            return hooks.call(self, args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if state.trace is not None:
            state.trace.assign(self, name, value)
        before = self.__dict__.get(name)
        check_assigned(self, Module, name, value, before)
        if value is None and isinstance(before, Parameter):
            self._parameter_names |= {name}
        if isinstance(value, Parameter) and value._axes is None:
            value._axes = self._torch_axes.get(name)
        object.__setattr__(self, name, value)
        if value is not before:
            note_replaced()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._parameter_names -= {name}
        self._buffer_names -= {name}
        note_replaced()

    # Contents

    def named_modules(self) -> Found[tuple[str, Module]]:
        """Return (path, module) pairs of this module (path "") and all modules below it, each once,
        parents first."""
        return Found((path, item) for path, item, _ in walk(self) if isinstance(item, Module))

    def modules(self) -> Found[Module]:
        """Return this module and every module below it, each once, parents first."""
        return Found(module for _, module in self.named_modules())

    def modules_below(self) -> Found[Module]:
        """Return the result of `modules()`, even if the Module has an attribute `modules`."""
        return Module.modules(self)

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """Return (path, tensor) pairs of all parameters and saved buffers. A shared tensor appears
        under each of its paths."""
        return [(path, item) for path, item, _ in walk(self) if isinstance(item, Tensor)]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Found[tuple[str, Parameter]]:
        """Return (path, parameter) pairs, each parameter once. If there is a `prefix`, every path
        begins with it and a dot. Without `recurse`, parameters of the modules below are left
        out."""
        found = once(self.named_tensors() if recurse else list(self._contents()), Parameter)
        return Found((f"{prefix}.{path}", item) for path, item in found) if prefix else found

    def named_buffers(self) -> Found[tuple[str, Tensor]]:
        """Return (path, buffer) pairs, each buffer once. Buffers are tensors that are not learned,
        whether they are saved or not."""
        tensors = [
            (f"{path}.{name}" if path else name, item)
            for path, module in self.named_modules()
            for name, item in module._contents(unsaved=True)
            if isinstance(item, Tensor) and not isinstance(item, Parameter)
        ]
        return once(tensors, Tensor)

    def buffers(self) -> Found[Tensor]:
        """Return every buffer once."""
        return Found(buffer for _, buffer in self.named_buffers())

    def parameters(self, recurse: bool = True) -> Found[Parameter]:
        """Return every parameter once; `recurse` is as in `named_parameters`."""
        return Found(parameter for _, parameter in self.named_parameters("", recurse))

    def _contents(self, unsaved: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield (path, item) for the state's tensors and the modules that are directly in this
        module or in its containers. With `unsaved`, buffers that are not saved are included."""
        for path, item, _ in walk(self, unsaved=unsaved, below=False):
            if item is not self:
                yield path, item

    def named_children(self) -> Found[tuple[str, Module]]:
        """Return (path, module) pairs of the modules directly in this one, each once."""
        return once(list(self._contents()), Module)

    def children(self) -> Found[Module]:
        """Return the modules directly in this one, each once."""
        return Found(module for _, module in self.named_children())

    def get_submodule(self, path: str) -> Module:
        """Return the module at `path` ("" is this module). Raises AttributeError if there is
        none."""
        found = dict(self.named_modules())
        if path not in found:
            raise AttributeError(f"{type(self).__name__} has no module {path!r}")
        return found[path]

    def get_parameter(self, path: str) -> Parameter:
        """Return the parameter at `path`. Raises AttributeError if there is none."""
        for name, tensor in self.named_tensors():
            if name == path and isinstance(tensor, Parameter):
                return tensor
        raise AttributeError(f"{type(self).__name__} has no parameter {path!r}")

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Set the attribute `name` to `tensor`, which is not learned but moves with the module and
        is saved if `persistent`. None reserves the name.

        Raises ValueError for a name that is taken, has a "." or begins with "_" (a buffer with such
        a name would not be saved), and TypeError for a value that is not a Tensor or is a
        Parameter.
        """
        if tensor is not None and (isinstance(tensor, Parameter) or not isinstance(tensor, Tensor)):
            kind = type(tensor).__name__
            raise TypeError(f"register_buffer: {name!r} is a {kind}, not a Tensor or None")
        self._check_new("register_buffer", name)
        if name.startswith("_"):
            raise ValueError(f"register_buffer: {name!r} begins with '_', so it would not be saved")
        if not persistent:
            self._unsaved = self._unsaved | {name}
        self._buffer_names |= {name}
        setattr(self, name, tensor)

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Set the attribute `name` to `parameter`, a Parameter or None. Raises ValueError for a
        name that is taken or has a ".", and TypeError for a value that is not a Parameter."""
        if parameter is not None and not isinstance(parameter, Parameter):
            kind = type(parameter).__name__
            raise TypeError(f"register_parameter: {name!r} is a {kind}, not a Parameter or None")
        self._check_new("register_parameter", name)
        self._parameter_names |= {name}
        setattr(self, name, parameter)

    def add_module(self, name: str, module: Module) -> None:
        """Set the attribute `name` to `module`. Raises ValueError for a name that is taken or has a
        ".", and TypeError for a value that is not a Module."""
        if not isinstance(module, Module):
            raise TypeError(f"add_module: {name!r} is a {type(module).__name__}, not a Module")
        self._check_new("add_module", name)
        setattr(self, name, module)

    register_module = add_module

    def _check_new(self, owner: str, name: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{owner}: a name must be a str, not a {type(name).__name__}")
        if not name or "." in name:
            raise ValueError(f"{owner}: the name {name!r} is empty or has a '.'")
        if hasattr(self, name):
            raise ValueError(f"{owner}: {type(self).__name__} already has {name!r}")

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on every module below this one, children first, and then on this one. Returns
        self.

        >>> kinds = []
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> model = model.apply(lambda module: kinds.append(type(module).__name__))
        >>> kinds
        ['Linear', 'Tanh', 'Sequential']
        """
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # Hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, with_kwargs: bool = False
    ) -> hooks.Hook:
        """Call `hook(module, args)` before each forward. The hook returns None or new arguments (a
        tuple, or the only argument). With `with_kwargs`, the call is `hook(module, args, kwargs)`,
        and the hook returns None or (args, kwargs). Returns a Hook; its method `remove`, or the end
        of a `with` block over it, removes the hook. Compiled code keeps the effects that hooks had
        while tracing."""
        return hooks.Hook(self, hook, True, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, with_kwargs: bool = False
    ) -> hooks.Hook:
        """Call `hook(module, args, output)` after each forward or, if `with_kwargs`, `hook(module,
        args, kwargs, output)`. The hook returns None or a new output. Returns a Hook, as
        `register_forward_pre_hook` does.

        >>> layer, shapes = nn.Linear(3, 4), []
        >>> with layer.register_forward_hook(lambda module, args, y: shapes.append(y.shape)):
        ...     y = layer(ndl.zeros(2, 3))
        >>> shapes
        [(2, 4)]
        """
        return hooks.Hook(self, hook, False, with_kwargs)

    # State

    def torch_layout(self) -> Layout:
        """Return PyTorch's forms of the tensors and modules in this module that PyTorch stores
        differently: a dict from paths to a `Form` or only a name. Modules below declare their
        own."""
        return {}

    def state_dict(self, layout: str = "needle") -> dict[str, Tensor]:
        """Return the parameters and buffers by path, detached; they share memory with the module.

        With layout="torch", names and shapes are those of PyTorch's modules. Raises ValueError for
        any other layout.

        >>> model = nn.Sequential(nn.Linear(3, 4))
        >>> {name: value.shape for name, value in model.state_dict().items()}
        {'modules.0.weight': (3, 4), 'modules.0.bias': (1, 4)}
        >>> {name: value.shape for name, value in model.state_dict(layout="torch").items()}
        {'0.weight': (4, 3), '0.bias': (4,)}
        """
        check_layout("state_dict", layout)
        if layout == "needle":
            return {name: tensor.detach() for name, tensor in self.named_tensors()}
        entries, _ = torch_entries(self)
        return {e.name: e.form.outgoing(e.tensor) for e in entries if e.form is not None}

    def load_state_dict(
        self, values: Mapping[str, Any], strict: bool = True, layout: str = "needle"
    ) -> IncompatibleKeys:
        """Copy `values`, a dict from paths to Tensors, NDArrays, NumPy arrays or anything with
        DLPack, into the module. With layout="torch", they have the names and shapes of PyTorch's
        modules, as files on the Hugging Face Hub do; a shared tensor then needs only one of its
        names.

        Raises a ValueError that lists all missing and unexpected names (if `strict`), all wrong
        shapes and dtypes, and all tensors for which two names have different values. Raises
        TypeError for a masked array and for a value that is not an array. After an error, nothing
        has changed. Returns the missing and unexpected names as `missing_keys` and
        `unexpected_keys`.

        >>> layer = nn.Linear(2, 1)
        >>> values = {"weight": np.ones((1, 2), "float32"), "bias": np.zeros(1, "float32")}
        >>> layer.load_state_dict(values, layout="torch").missing_keys, layer.weight.shape
        ([], (2, 1))
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"load_state_dict: a {type(values).__name__} is not a dict of tensors")
        check_layout("load_state_dict", layout)
        if layout == "torch":
            entries, unused = torch_entries(self)
            given = {id(entry.tensor) for entry in entries if entry.name in values}
            absent = [e.name for e in entries if id(e.tensor) not in given]
        else:
            entries, unused = [Entry(*pair, None) for pair in self.named_tensors()], set()
            absent = [entry.name for entry in entries if entry.name not in values]
        known = {entry.name for entry in entries} | unused
        keys = IncompatibleKeys(absent, [name for name in values if name not in known])
        wrong = []
        if strict:
            wrong += [f"missing {name!r}" for name in keys.missing_keys]
            wrong += [f"unexpected {name!r}" for name in keys.unexpected_keys]
        found = [(entry, values[entry.name]) for entry in entries if entry.name in values]
        for (name, _, _), value in found:
            refuse_masked(value, f"load_state_dict: {name!r}")
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                kind = type(value).__name__
                raise TypeError(f"load_state_dict: {name!r} is a {kind}, not a tensor")
        arrays = [(entry, _array(value)) for entry, value in found]
        for entry, array in arrays:
            if array.shape != entry.shape:
                wrong.append(f"{entry.name!r} has shape {array.shape}, not {entry.shape}")
            elif array.dtype != entry.tensor.dtype:
                wrong.append(f"{entry.name!r} has dtype {array.dtype}, not {entry.tensor.dtype}")
        self._refuse_state(*wrong)
        new: dict[int, tuple[str, NDArray]] = {}  # by id: a tensor may have several names
        for (name, tensor, form), array in arrays:
            data = _copied(array, tensor.device)
            data = data if form is None else form.incoming(data)
            first, kept = new.setdefault(id(tensor), (name, data))
            if kept is not data and kept.numpy().tobytes() != data.numpy().tobytes():
                wrong.append(f"{first!r} and {name!r} are one tensor and have different values")
        self._refuse_state(*wrong)
        for (_, tensor, _), _ in arrays:
            tensor._replace(new[id(tensor)][1])
        return keys

    def _refuse_state(self, *problems: str) -> None:
        if problems:
            raise ValueError(f"load_state_dict: {type(self).__name__}: {'; '.join(problems)}")

    def train(self, mode: bool = True) -> Module:
        """Put this module and all modules below it in train mode, or in eval mode if `mode` is
        False. Returns self."""
        for module in self.modules_below():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Put this module and all modules below it in eval mode. Returns self.

        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
        >>> model.training, model[1].training
        (False, False)
        """
        return self.train(False)

    def summary(self, *args: Any, **kwargs: Any) -> Any:
        """See needle/trace/summary.py, which replaces this method."""
        raise NotImplementedError

    def __repr__(self) -> str:
        inside = [
            f"  ({name}): " + repr(module).replace("\n", "\n  ")
            for name, module in self._contents()
            if isinstance(module, Module)
        ]
        body = "\n" + "\n".join(inside) + "\n" if inside else ""
        return f"{type(self).__name__}({self.extra_repr()}{body})"

    def extra_repr(self) -> str:
        """Return the text that `repr` shows in parentheses."""
        return ""


def _array(value: Any) -> NDArray:
    return value if isinstance(value, NDArray) else Tensor(value).realize_cached_data()


def _copied(data: NDArray, device: Device) -> NDArray:
    return data.to(device).copy() if data.device is device else data.to(device)


class Link(NamedTuple):
    """A record that `holder[key]` was `value` when a search passed through it, after the link
    `before`.

    Attributes of modules have no links, because `last_replacement` tracks their replacement.
    """

    holder: Any
    key: Any
    value: Any
    before: Link | None

    def holds(self) -> bool:
        """Return whether `holder[key]` is still `value`."""
        try:
            return self.holder[self.key] is self.value
        except (LookupError, ValueError):  # ValueError: an unbound closure variable
            return False


def walk(
    root: Module,
    link: Link | None = None,
    hidden: bool = False,
    unsaved: bool = False,
    below: bool = True,
) -> Iterator[tuple[str, Any, Link | None]]:
    """Yield (path, item, last link to the item) for modules and tensors, in order of assignment,
    each module once. With `hidden`, modules appear under all their names, and tensors that are not
    part of the state appear too. With `unsaved`, buffers that are not saved appear too. Without
    `below`, the contents of modules other than `root` do not appear."""
    seen: set[int] = set()
    stack: list[tuple[str, Any, Link | None, frozenset[int]]] = [("", root, link, frozenset())]
    while stack:
        path, item, link, above = stack.pop()
        if isinstance(item, Tensor):
            yield path, item, link
            continue
        if not below and item is not root and isinstance(item, Module):
            yield path, item, link  # under each of its names
            continue
        if id(item) in (above if hidden else seen):
            continue
        seen.add(id(item))
        if hidden:
            above |= {id(item)}
        inside: Iterable[tuple[Any, Any]]
        if isinstance(item, Module):
            yield path, item, link
            left_out = frozenset() if hidden or unsaved else item._unsaved
            inside = [
                (name, value)
                for name, value in vars(item).items()
                if hidden or not (name in left_out or _hidden(name, value))
            ]
        else:
            inside = item.items() if isinstance(item, dict) else enumerate(item)
        changes = isinstance(item, (dict, list))
        for key, value in reversed([*inside]):
            if isinstance(value, (Module, Tensor, list, tuple, dict)):
                name = f"{path}.{key}" if path else str(key)
                last = Link(item, key, value, link) if changes else link
                stack.append((name, value, last, above))


def _hidden(name: str, value: Any) -> bool:
    """Return whether an attribute is a tensor that is not part of the state."""
    return name.startswith("_") and isinstance(value, Tensor) and not isinstance(value, Parameter)
