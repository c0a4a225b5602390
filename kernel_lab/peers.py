"""Peers: other libraries that compute the same workload, set up as their own experts would set them
up."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernel_lab.results import RungResult
from kernel_lab.workload import Size, Workload
from needle_runtime.process.timing import Contestant
from needle_runtime.target import host


@dataclass(frozen=True)
class Peer:
    """A peer's name in tables, its factory in contestants.py, and its requirements."""

    name: str
    factory: str
    reason: str
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    precision: str = "float32"
    device: str = "cpu"

    @property
    def missing(self) -> str | None:
        """The reason that it cannot run here; None if it can."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(absent)}" if absent else None

    def entry(self) -> RungResult:
        """Return the peer's entry in a result, with nothing measured yet."""
        return RungResult(self.name, "peer", self.reason, precision=self.precision)


_TORCH = {
    "vector_add": "torch.add",
    "conv1d": "torch.nn.functional.conv1d",
    "depthwise": "torch.nn.functional.conv2d with groups=C",
    "separable": "torch.nn.functional.conv2d twice, groups=C and 1x1",
    "gemm": "torch.mm",
    "gelu_matmul": "torch.addmm, then torch.nn.functional.gelu",
    "int8_gemm": "torch._int_mm",
    "softmax": "torch.softmax",
    "layer_norm": "torch.nn.functional.layer_norm",
    "attention": "torch.nn.functional.scaled_dot_product_attention",
}
_NUMPY = {"vector_add": "np.add", "conv1d": "np.convolve", "gemm": "np.matmul"}
_USES_BLAS = ("conv1d", "gemm")
_TENSOR_CORES = ("gemm", "gelu_matmul")  # cuBLAS uses tensor cores for these if it may round


def of(workload: Workload, device: str) -> tuple[Peer, ...]:
    """Return the peers of a workload on a device; for a GPU also the peers on the processor."""
    peers = []
    if device == "cuda" and workload.name in _TORCH:
        how = _TORCH[workload.name]
        peers.append(Peer("PyTorch", "torch_peer", how, ("torch",), device="cuda"))
        if workload.name in _TENSOR_CORES:
            how = f"{how} with TF32 allowed, on tensor cores from sm_80 on"
            tf32 = replace(peers[0], name="PyTorch, TF32", reason=how, precision="tf32")
            peers.append(tf32)
    on_processor = _on_processor(workload.name)
    if device == "cuda":
        on_processor = [replace(peer, name=f"{peer.name}, CPU") for peer in on_processor]
    return (*peers, *on_processor)


def _on_processor(name: str) -> list[Peer]:
    peers = []
    if name in _NUMPY:
        peers.append(Peer("NumPy", f"numpy_{name}", f"{_NUMPY[name]}, OpenBLAS as installed"))
        knowing = host.openblas_environment()
        if name in _USES_BLAS and knowing:
            how = f"{_NUMPY[name]} with {' '.join(map('='.join, knowing.items()))}"
            peers.append(Peer("NumPy, tuned", f"numpy_{name}", how, env=knowing))
    if name in _TORCH:
        peers.append(Peer("PyTorch", "torch_peer", _TORCH[name], ("torch",)))
    return peers


def contestant(peer: Peer, workload: Workload, inputs: str, size: Size, threads: int) -> Contestant:
    """Return a peer as a contestant on saved inputs."""
    kwargs: dict[str, Any] = {"inputs": inputs}
    if "mode" in size:
        kwargs["mode"] = size["mode"]
    if peer.factory == "torch_peer":
        kwargs |= {"work": workload.name, "threads": threads, "precision": peer.precision}
        kwargs |= {"device": peer.device}
    factory = f"kernel_lab.contestants:{peer.factory}"
    return Contestant(peer.name, factory, kwargs, peer.env, threads)
