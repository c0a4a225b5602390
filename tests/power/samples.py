"""A sample of PyTorch's tests as a module."""

from __future__ import annotations

from typing import Any

import torch


class Sample(torch.nn.Module):
    """An operator with the arguments of a sample; the sample's tensors are its `inputs`."""

    def __init__(self, operator: Any, sample: Any) -> None:
        super().__init__()
        self._operator = operator
        given = ((sample.input, *sample.args), sample.kwargs)
        leaves, self._structure = torch.utils._pytree.tree_flatten(given)
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.inputs = tuple(leaves[i].detach().clone() for i in self._places)

    def forward(self, *inputs: Any) -> Any:
        leaves = list(self._leaves)
        for place, value in zip(self._places, inputs, strict=True):
            leaves[place] = value
        args, kwargs = torch.utils._pytree.tree_unflatten(leaves, self._structure)
        return self._operator(*args, **kwargs)
