"""The record store: tuning measurements, kept durably and used only where they apply.

`facts` defines the stored facts, and `store` their file of JSON lines. `database` translates
between the store's trials and TVM's records, under a key from `keys`. Only these two import TVM.

The store is `records/records.jsonl` in the cache folder (`NEEDLE_CACHE_DIR`, else the user's own).
The search writes and reads it; a compilation without trials never reads it. Any number of processes
on one machine may use it, but not over a network file system: merge stores instead.

- A trial belongs to a kernel, and a kernel to a key: the target with the processor's features, the
  versions of TVM, tvm-ffi, LLVM or CUDA, and the PassContext. Kernels are found by structural hash
  and then compared for structural equality. A difference in any of these makes a different kernel.
- A trial is one line: the candidate, its times, its verdict, and its cost to the session that paid
  for it. It is on disk when `Database.commit` returns, so that a restarted search knows how much of
  its budget is left. Candidates that crashed, hung or were wrong are kept, so that no search tries
  them again. A later rejection is a separate line and is final.
- `python -m needle_tvm records list|show|merge` manages the store.
"""
