"""PyTorch models as needle Modules. PyTorch is imported when used.

No other package of needle imports PyTorch. `loading` reads from top to bottom:

- `model_forms` takes a module, a program or a file (`archive`, which runs no code from it).
  `structure` makes a function from a list of tensors to a list of tensors of it.
- `exporting` has `torch.export` record that function, and has PyTorch decompose the operators that
  have no converter. `dims` reads the caller's dims. `symbols` turns PyTorch's symbols into
  expressions of dims, and checks that PyTorch's guards hold at all sizes.
- `reading` makes a `Program` (`program`) of the result: plain Python objects, with everything
  computed that depends on constants alone.
- `model` is the Module. `execute` runs the program's nodes by their converters, eagerly and while
  tracing, and compares each result's shape and dtype with PyTorch's record.
- `oracle` runs the model in PyTorch and compares. If the results differ, it goes from node to node.
- `attributes` puts back attributes that a model changes.
- `shared_state` keeps the state of a model in the PyTorch model. `aot_graph`, `aot_nodes` and
  `aot_tracing` read the graphs of `torch.compile`.
"""

from __future__ import annotations

from .loading import load
from .model import TorchModel

__all__ = ["TorchModel", "load"]
