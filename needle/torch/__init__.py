"""PyTorch models as needle Modules. PyTorch is imported only when a function needs it.

No other package of needle imports PyTorch. The modules, roughly in the order of their use:

- `model_forms` accepts a module, a program or a file; `archive` reads files without running code
  from them. `structure` turns the model into a function from a list of tensors to a list of
  tensors.
- `exporting` records that function with `torch.export`. `functionalize` replaces in-place writes.
  PyTorch decomposes operators that have no converter, and programs that `functionalize` cannot
  change; that takes longer. `dims` reads the caller's dims. `symbols` turns PyTorch's symbols into
  expressions of dims, and checks that PyTorch's guards hold at all sizes.
- `reading` turns the exported program into a `Program` (`program`) of plain Python objects.
  It computes everything that depends only on constants.
- `model` defines the Module. `execute` runs the program's nodes with their converters, eagerly and
  while tracing, and compares each result's shape and dtype with the shape and dtype that PyTorch
  recorded.
- `oracle` runs the model in PyTorch and compares the results. If they differ, it compares node by
  node.
- `attributes` restores the attributes that a model's `forward` changes.
- `shared_state` keeps a model's state in the PyTorch model itself. `aot_graph`, `aot_nodes` and
  `aot_tracing` read the graphs of `torch.compile`.
"""

from __future__ import annotations

from .loading import load
from .model import TorchModel

__all__ = ["TorchModel", "load"]
