"""The service of `campaign.service` for PyTorch programs."""

from __future__ import annotations

import functools
import importlib

import torch

import needle.torch
from needle_tvm.check.campaign import service  # noqa: F401
from needle_tvm.check.campaign.torch.programs import serve

__all__ = ["serve"]


def _look_operators_up_once() -> None:
    """Cache the list of all operators, which each export requests 52 times."""
    utils = importlib.import_module("torch._export.utils")
    looks_up = "_materialize_cpp_cia_ops"
    if hasattr(utils, looks_up):
        setattr(utils, looks_up, functools.cache(getattr(utils, looks_up)))


def _meet_late_imports() -> None:
    """Import now the thousand modules that `torch.export` imports late."""
    torch.set_num_threads(1)
    needle.torch.load(torch.nn.Linear(3, 4).eval(), torch.ones(2, 3))


_look_operators_up_once()
_meet_late_imports()
