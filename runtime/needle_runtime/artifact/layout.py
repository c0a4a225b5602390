"""The names of the files in an artifact's folder.

lib.so               compiled functions and the bytecode of TVM's virtual machine
module.tvmscript     the Relax module from which the library was built, as text for people to read
params.safetensors   weights under their `state_dict` names (absent in cache entries)
golden.safetensors   an example: inputs `input.N` and the eager model's outputs `output.N`; if sizes
                     are left to the call, also examples of other sizes, as `1.input.N` and so on
manifest.json        the signatures of the functions, the target, the versions of the tools, the
                     SHA-256 and size of every other file, and a digest of the manifest itself
manifest.sig         optional: an Ed25519 signature of the manifest's bytes, and so of all files

The digests reveal damage; the signature shows who wrote the artifact. Only a key from another
source can show that nobody has changed files and digests together.
"""

LIBRARY = "lib.so"
SCRIPT = "module.tvmscript"
PARAMS = "params.safetensors"
GOLDEN = "golden.safetensors"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
