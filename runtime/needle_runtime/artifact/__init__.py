"""Compiled models on disk: the folder, its manifest, and its arrays.

`layout` lists the files of an artifact. `manifest` seals a folder with the hash and size of every
file. A folder is written as a whole or not at all (`replacing`, `process.atomic`). An export adds
the eager model's outputs for the example inputs (`golden`) and, on request, a signature.

An `Artifact` has been verified and cannot change. It has the folder, the manifest, the signature of
`main` (`function`), the target, and the reason why this machine cannot run the code, if there is
one. It checks the hash of each file that it reads, loads no code and needs only NumPy. The command
`inspect` and the cache use only this package.
"""

from needle_runtime.artifact.artifact import Artifact

__all__ = ["Artifact"]
