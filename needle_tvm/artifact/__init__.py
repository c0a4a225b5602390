"""Compiled models on disk: the folder, its manifest, its arrays, and the cache of them."""

from needle_tvm.artifact.artifact import Artifact

__all__ = ["Artifact"]
