"""Compiled models on disk: the folder, its manifest, its arrays, and the cache of such folders.

`layout` lists the files of an artifact. `manifest` seals a folder with the hash and size of every
file. A folder is written as a whole or not at all (`replacing`, `needle_tvm.process.atomic`). An
export adds the eager model's outputs for the example inputs (`golden`) and, on request, a
signature.

An `Artifact` has been verified and cannot change. It has the folder, the manifest, the signature of
`main` (`function`), the target, and the reason why this machine cannot run the code, if there is
one. It reads files with their hashes checked, loads no code and needs only NumPy. The command
`inspect` and the cache need nothing else.

The cache (`cache`) finds an entry by the model's fingerprint, the target, the stage and the
versions that made it. A model with an op that is not needle's has no fingerprint; its lowered
module is used instead (`needle_tvm.compiler`). The cache's contents are executed, so the folder is
private, and entries that others could have written are not used.
"""

from needle_tvm.artifact.artifact import Artifact

__all__ = ["Artifact"]
