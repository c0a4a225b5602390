"""The C and C++ interface of the runtime, runtime/include.

- `library.py` calls the C functions from Python, so that results can be compared with Python's.
- `build.py` compiles programs as users do, and the library itself with sanitizers.
- `test_sanitized.py` runs the examples, and the programs beside it, under ASan, UBSan and TSan.
"""
