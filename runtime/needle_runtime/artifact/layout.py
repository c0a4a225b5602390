"""The names of the files in an artifact's folder.

lib.so               compiled functions and the bytecode of TVM's virtual machine
module.tvmscript     the Relax module that the library was built from, for reading
params.safetensors   weights under their `state_dict` names (absent in cache entries)
golden.safetensors   an example: inputs `input.N` and the eager model's outputs `output.N`; if sizes
                     are left to the call, also examples of other sizes, as `1.input.N` and so on
manifest.json        the signatures of the functions, the target, the versions that made it, the
                     SHA-256 and size of every other file, and a digest of the manifest itself
manifest.sig         optional: an Ed25519 signature of the manifest's bytes, and so of everything

The digests reveal damage; the signature reveals who wrote the artifact. Only a key from elsewhere
can show that nobody has rewritten files and digests together.
"""

LIBRARY = "lib.so"
SCRIPT = "module.tvmscript"
PARAMS = "params.safetensors"
GOLDEN = "golden.safetensors"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
