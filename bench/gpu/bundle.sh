#!/usr/bin/env bash
# Packs what a GPU host without a network needs into .gpu/: the pinned TVM and tvm-ffi for that host's Python,
# and small Python packages that it lacks. Takes about ten minutes, of which nine are spent compressing.
# usage: bundle.sh [PYTHON_OF_THIS_ENV] [PYTHON_VERSION_OF_THE_GPU_HOST]    defaults: .venv/bin/python 3.12
# EXTRA_WHEELS names more packages than platformdirs; LIMIT is in bytes, of .gpu/ and the tracked files together.
set -euo pipefail
python=${1:-.venv/bin/python} host=${2:-3.12} limit=${LIMIT:-$((64 * 1024 * 1024))}
here=$(cd "$(dirname "$0")" && pwd)
tvm=$("$python" -c 'import importlib.util as u; print(u.find_spec("tvm").submodule_search_locations[0])')
ffi=$("$python" -c 'from importlib.metadata import version; print(version("apache-tvm-ffi"))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version "$host" --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
  -d "$work/wheels" "apache-tvm-ffi==$ffi" ${EXTRA_WHEELS:-platformdirs}
mkdir -p .gpu "$work/site"
for wheel in "$work"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$work/site"; done
# Libraries of x86-64 are a twentieth smaller where calls have absolute addresses, which is what --x86 does; in one
# archive the wheels, which are compressed by themselves, take half of their size.
tar -cf - --exclude=__pycache__ --exclude=tvm/3rdparty --exclude=tvm/web --exclude=tvm/licenses --exclude=tvm/cmake \
  --exclude=tvm/src -C "$(dirname "$tvm")" tvm -C "$work/site" . |
  xz -T1 --x86 --lzma2=preset=9e,dict=256MiB >.gpu/tvm.tar.xz
cp "$here/setup.sh" .gpu/setup.sh
tracked=$(git ls-files -z | xargs -0 stat -c %s | awk '{ sum += $1 } END { print sum }')
size=$(du -sb .gpu | cut -f1)
echo ".gpu holds $size bytes, tracked files $tracked"
((size + tracked < limit)) || { echo "over $limit bytes: leave something out" >&2; exit 1; }
