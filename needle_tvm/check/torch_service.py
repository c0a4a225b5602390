"""As `service`, for programs of PyTorch."""

from __future__ import annotations

import torch

from needle_tvm import torch_models, torch_reference
from needle_tvm.check import torch_programs  # noqa: F401
from needle_tvm.check.service import serve

__all__ = ["serve"]


def _meet_late_imports() -> None:
    """Of `torch.export`, a thousand modules."""
    torch.set_num_threads(1)
    model, x = torch.nn.Linear(3, 4).eval(), torch.ones(2, 3)
    reference = torch_reference.Reference(torch_models.take(model, (x,)))
    reference.difference([torch_reference.array(model(x))])


_meet_late_imports()
