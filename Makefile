# The environment, the build, and the commands a person or CI types. Everything lives in .venv.
#
#   make          builds the native backend into .venv        make run     evaluates the MLP
#   make test     the default test suite                       make bench   compares it with peers
#   make help     everything else

PYTHON ?= python3
CXX ?= g++
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
OUT ?= out
ARGS ?=
PYTEST_ARGS ?=

export CXX
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip reports each install on stderr with one line, and on a terminal also with progress bars.
export PIP_QUIET ?= $(shell test -t 2 && echo 0 || echo 1)

# The two distributions, installed together: needle-dl needs needle-runtime.
PROJECTS := pyproject.toml runtime/pyproject.toml
NATIVE := CMakeLists.txt $(wildcard runtime/*.txt runtime/*.cmake) $(PROJECTS) \
  $(shell find src runtime/src runtime/include runtime/cmake -type f 2>/dev/null)
EXTRAS := tvm apps test
LINTERS := clang-format==23.1.5
LINT_PATHS := needle needle_tvm runtime kernel_lab apps bench exercises gallery tests docs packaging .ci
CXX_SOURCES = $(shell find src runtime/src runtime/include runtime/examples bench tests needle_tvm -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cc' -o -name '*.cpp' -o -name '*.inc' -o -name '*.cu' 2>/dev/null)

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build run lab gallery real zoo test test-quick test-all test-long campaign lint format sanitize guide reference site bench bench-layers bench-operations bench-recurrence bench-shipping bench-training bench-tuning bench-zoo peers gpu-test gpu-bench gpu-bundle gpu-rehearse gpu-page check wheels clean help

build: $(STAMPS)/native

run: build
	$(PY) apps/tvm_eval.py -m mlp -d cpu --out $(OUT) $(ARGS)

lab: build
	$(PY) -m kernel_lab $(ARGS)

# Trains, exports and runs the models of gallery/ in a few minutes; pictures and a table go to OUT.
gallery: build
	$(PY) gallery/run_all.py --out $(OUT)/gallery $(ARGS)

# Compiles models that packages ship and compares them with ONNX Runtime; pictures and a table go to OUT.
real: build zoo
	$(PY) gallery/real/run_all.py --out $(OUT)/real $(ARGS)

# Runs the course's pages as Jupyter notebooks with outputs; adds the kernel `needle` to .venv for them.
guide: build $(STAMPS)/guide
	$(PY) -m docs.course.notebooks $(OUT)/guide

# Markdown pages with every public name, from the docstrings.
reference: build
	$(PY) docs/reference.py $(OUT)/reference

# One site in OUT/site with the course, the documents, the reference, a page on each compiler pass, and the
# lab's reports. It needs no server and no network. ARGS=--no-lab leaves the reports out.
site: build $(STAMPS)/site $(STAMPS)/guide
	$(PY) -m docs.website $(OUT)/site $(ARGS)

# The wheels of both distributions, each tried in an empty environment; ARGS="--extras" tries the extras
# too, ARGS="--pythons 3.10 3.13" other Pythons.
wheels: build
	$(PY) packaging/wheels.py $(OUT)/wheels $(ARGS)

# The tests in tiers, in two processes: each process holds a model or two and the compiler.
PYTEST := $(PY) -m pytest -n 2 --dist worksteal

# Under a minute: autograd, modules and data with few drawn cases, graph passes, arguments.
QUICK := tests/test_package.py $(wildcard tests/needle/test_*.py) tests/needle/data \
  $(addprefix tests/needle/nn/test_,nn.py optim.py init.py nn_layers.py) \
  tests/needle/ops/test_check_op.py tests/needle_tvm/graph/passes \
  tests/needle_tvm/kernels/test_rules.py \
  $(addprefix tests/needle_tvm/compiler/test_,bad_arguments.py faults.py install.py)
test-quick: export NEEDLE_CASES ?= 20
test-quick: build
	$(PYTEST) -m "not slow and not long and not gpu" $(QUICK) $(PYTEST_ARGS)

# All quick tests, each with a quarter of its cases; with PYTEST_ARGS, all cases of that part.
test: build
	$(PYTEST) -m "not slow and not long and not gpu" $(or $(PYTEST_ARGS),--sample)

# Every case of the quick and the slow tests: apps in processes of their own, emulated GPUs, peers, the
# course, and 600 frozen programs. CI runs a quarter of the cases: PYTEST_ARGS=--sample.
test-all: build
	$(PYTEST) -m "not long and not gpu" $(PYTEST_ARGS)

# Takes hours: repeats many times what other tests do a few times (kills, damaged pages, emulated products).
test-long: build
	$(PYTEST) -m "long and not gpu" $(PYTEST_ARGS)

# Runs random programs for hours, from seeds that it prints. ARGS="--seeds A:B" continues a run;
# ARGS="--minutes 30 --processes 2" ends sooner and runs two programs at once.
campaign: build
	$(PY) -m needle_tvm.check --out $(OUT)/campaign/programs.jsonl $(ARGS)

lint: $(STAMPS)/lint
	$(PY) -m ruff check $(LINT_PATHS)
	$(PY) -m ruff format --check $(LINT_PATHS)
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache
	$(PY) -m docs.prose
	$(if $(CXX_SOURCES),$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES))

# Runs the array tests against a sanitized build, in a copy of the tree and a separate environment,
# because the editable install in .venv would always be imported first.
SANITIZED := build/sanitize
SANITIZE_FLAGS := -DNEEDLE_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
sanitize: build
	@$(VENV)/bin/cmake -S . -B $(SANITIZED)/cmake -G Ninja $(SANITIZE_FLAGS) \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja -DPython_EXECUTABLE=$(abspath $(PY))
	@$(VENV)/bin/cmake --build $(SANITIZED)/cmake
	@rm -rf $(SANITIZED)/tree && mkdir -p $(SANITIZED)/tree
	@cp -r needle needle_tvm runtime/needle_runtime apps bench tests pyproject.toml $(SANITIZED)/tree
	@$(VENV)/bin/cmake --install $(SANITIZED)/cmake --prefix $(SANITIZED)/tree
	@$(PYTHON) -m venv --without-pip $(SANITIZED)/venv
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$($(SANITIZED)/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	cd $(SANITIZED)/tree && \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  PYTHONPATH="$$PWD" ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  ../venv/bin/python -m pytest tests/needle/backend_ndarray -m "not slow and not long and not gpu" $(PYTEST_ARGS)

format: build $(STAMPS)/lint
	$(PY) -m needle.ops._stub
	$(PY) -m needle.methods._stub
	$(PY) -m ruff check --fix-only --quiet $(LINT_PATHS)
	$(PY) -m ruff format $(LINT_PATHS)
	$(if $(CXX_SOURCES),$(VENV)/bin/clang-format -i $(CXX_SOURCES))

bench: build peers
	$(PY) -m bench.cpu --out $(OUT)/bench $(ARGS)

bench-layers: build peers
	$(PY) -m bench.layers --out $(OUT)/bench $(ARGS)

bench-operations: build peers
	$(PY) -m bench.operations --out $(OUT)/bench $(ARGS)

bench-recurrence: build peers
	$(PY) -m bench.recurrence --out $(OUT)/bench $(ARGS)

# ARGS="--onnxruntime-include FOLDER" adds ONNX Runtime's C++ call; its wheel lacks these headers.
bench-shipping: build peers
	$(PY) -m bench.shipping --out $(OUT)/bench $(ARGS)

bench-training: build peers
	$(PY) -m bench.training_steps --out $(OUT)/bench $(ARGS)

# Long: it runs four searches; run nothing else meanwhile.
bench-tuning: build
	$(PY) -m bench.tuning --out $(OUT)/bench $(ARGS)

# Takes hours: torch.compile needs minutes per model. Results stay in OUT; run the same command to continue.
# Install torchvision, timm and transformers for their models; without them, only our own six models run.
bench-zoo: build peers
	$(PY) -m bench.zoo --steps times --out $(OUT)/bench $(ARGS)

peers: $(STAMPS)/peers

zoo: $(STAMPS)/zoo

# These run on the GPU host with its own Python; the bundle has everything else that they need.
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),python3)
gpu-test gpu-bench:
	@PYTHONPATH=runtime$${PYTHONPATH:+:$$PYTHONPATH} $(GPU_PYTHON) -m bench.gpu $(@:gpu-%=%) $(ARGS)

# These run here: gpu-bundle compiles everything for that host and packs it into .gpu/, gpu-rehearse runs
# a bundle on an emulated GPU, and gpu-page writes the page of an archive from gpu-bench (ARGS="FILE").
gpu-bundle gpu-rehearse gpu-page: build
	@$(PY) -m bench.gpu $(@:gpu-%=%) $(ARGS)

# Removes only files that these recipes make; a user's cache of compiled models stays.
clean:
	rm -rf $(VENV) build runtime/build dist $(OUT)

help:
	@echo "build (default)  the native backend, into .venv       check      looks for the needed tools"
	@echo "run              the MLP through every stage, to out/ bench      models against other frameworks"
	@echo "test             the default suite                    test-quick a part of it, under a minute"
	@echo "test-all         every case of all tests              test-long  repeated tests, for hours"
	@echo "campaign         random programs at every stage, for hours; ARGS='--kind ops --minutes 30'"
	@echo "lab ARGS=...     a kernel, step by step: ARGS='gemm -d cpu --peers'; ARGS=--list shows all"
	@echo "gallery          fourteen small models, each trained, exported and run; pictures in out/gallery"
	@echo "real             models that packages ship (make zoo installs them) against ONNX Runtime"
	@echo "lint / format    ruff, mypy, clang-format             sanitize   ndarray tests, ASan + UBSan"
	@echo "wheels           both distributions' wheels, each tried in an empty environment"
	@echo "bench-training   whole training steps against PyTorch and JAX"
	@echo "guide            docs/course as executed notebooks"
	@echo "reference        a page for each module, with every public name, in out/reference"
	@echo "site             the course, all documents and the lab's reports as pages, in out/site"
	@echo "bench-layers     single layers of PyTorch, in many shapes, against other frameworks"
	@echo "bench-operations single operations, compiled and eager, against PyTorch and ONNX Runtime"
	@echo "bench-recurrence LSTM, GRU, RNN and users' cells against PyTorch, JAX and ONNX Runtime"
	@echo "bench-shipping   environments, first answers and C++ calls against ONNX Runtime, AOTInductor"
	@echo "bench-zoo        120 architectures against other frameworks, and the kernels that lose most"
	@echo "bench-tuning     our search for schedules against TVM's tune_relax, and the results of both"
	@echo "gpu-test         the tests that need a GPU            gpu-bench  needle on a GPU against PyTorch"
	@echo "gpu-bundle       compiles and packs everything that a GPU host needs into .gpu/"
	@echo "gpu-rehearse     runs a small bundle on an emulated GPU; gpu-page: the page of an archive"
	@echo "peers            installs the compared frameworks     clean      removes .venv, build, out"

# These checks come before any installation, so that a missing tool is not an error deep in pip's output.
# $(call require,COMMAND,MESSAGE) stops make with one line unless the shell command succeeds.
require = $(if $(shell { $(1); } >/dev/null 2>&1 && echo yes),,$(error needle needs $(2)))
define require_tools
$(call require,command -v $(PYTHON),Python 3.10 or newer: there is no $(PYTHON) here)
$(call require,$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))',Python 3.10 or newer: $(PYTHON) is $(shell $(PYTHON) -V 2>&1))
$(call require,$(PYTHON) -c 'import ensurepip; import venv',Python's venv module: install it (on Debian and Ubuntu: apt install python3-venv))
$(call require,command -v $(firstword $(CXX)),a C++17 compiler: there is no $(firstword $(CXX)) here (on Debian and Ubuntu: apt install g++))
$(call require,$(PYTHON) -c 'import os; import sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")',Python's headers: there is no Python.h here (on Debian and Ubuntu: apt install python3-dev))
endef

check:
	$(require_tools)
	@echo "python3 with venv and headers, and a C++ compiler: all found"

$(STAMPS)/venv:
	$(require_tools)
	@echo "making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# $(call install,STAMP,GROUPS) installs the projects' packages of the groups, then sets the stamp.
define install
@$(PY) .ci/requirements.py $(2) > $(1).txt
@$(PY) -m pip install -r $(1).txt >&2
@touch $(1)
endef

# The build's own requirements go into .venv too, so that a rebuild is one compiler run.
$(STAMPS)/dependencies: $(PROJECTS) $(STAMPS)/venv
	@echo "installing TVM, NumPy, matplotlib, CMake, pytest and their dependencies into $(VENV)" \
	  "(280 MB; a few minutes the first time)" >&2
	$(call install,$@,build $(EXTRAS))

$(STAMPS)/native: $(STAMPS)/dependencies $(NATIVE)
	$(require_tools)
	@echo "compiling the native backend (a minute or two)" >&2
	@$(PY) -m pip install --no-build-isolation --no-deps --editable ./runtime --editable . >&2
	@touch $@

$(STAMPS)/peers: $(STAMPS)/native
	@echo "installing PyTorch, ONNX Runtime, OpenVINO, JAX, tinygrad and MPI into $(VENV)" \
	  "(some minutes)" >&2
	$(call install,$@,bench mpi)

# Installs the packages without their dependencies; pyproject.toml says why.
$(STAMPS)/zoo: $(STAMPS)/peers
	@echo "installing packages that ship models into $(VENV)" >&2
	@$(PY) .ci/requirements.py zoo > $@.txt
	@$(PY) -m pip install --no-deps -r $@.txt >&2
	@touch $@

$(STAMPS)/site: $(STAMPS)/dependencies
	@echo "installing MkDocs into $(VENV)" >&2
	$(call install,$@,site)

$(STAMPS)/guide: $(STAMPS)/dependencies
	@echo "installing Jupyter's packages into $(VENV)" >&2
	$(call install,$@,guide)

$(STAMPS)/lint: $(STAMPS)/dependencies
	@echo "installing clang-format into $(VENV)" >&2
	@$(PY) -m pip install $(LINTERS) >&2
	@touch $@
