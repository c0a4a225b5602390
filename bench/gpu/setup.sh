# Sourced on a GPU host without a network, from the project's root: unpacks what bundle.sh packed into
# .gpu/, and sets the paths that TVM's CUDA runtime (linked to libcudart.so.13) and nvcc need.
# usage: . .gpu/setup.sh
site=${TMPDIR:-/tmp}/needle-gpu-site
if [ ! -e "$site/complete" ]; then
  mkdir -p "$site" && tar -xJf .gpu/tvm.tar.xz -C "$site" && touch "$site/complete" || return 1
fi
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" TVM_CUDA_COMPILE_MODE=nvcc
nvcc=$(command -v nvcc) && nvcc=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
for root in "${CUDA_HOME:-}" /usr/local/cuda "$nvcc"; do
  [ -n "$root" ] && [ -d "$root/include" ] && export CUDA_HOME=$root && break
done
[ -n "${CUDA_HOME:-}" ] && export PATH="$CUDA_HOME/bin:$PATH"
cudart=$(python3 - <<'PYTHON'
import glob
import sys

found = [path for base in sys.path for path in glob.glob(base + "/nvidia/*/lib/libcudart.so.13")]
print(":".join(dict.fromkeys(path.rpartition("/")[0] for path in found)))
PYTHON
)
for folder in "$cudart" "${CUDA_HOME:-}/lib" "${CUDA_HOME:-}/lib64"; do
  [ -n "$folder" ] && LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done
export LD_LIBRARY_PATH
python3 -c 'import tvm; print("tvm", tvm.__version__, "cuda device:", tvm.cuda(0).exist)'
