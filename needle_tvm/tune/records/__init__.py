"""The record store: what tuning measured, kept durably and served only where it applies.

`rows` defines what is stored, and `store` how: a file of JSON lines. `database` makes it a database
of TVM's meta_schedule; `old` reads the SQLite file of an older needle. Only `database`, `keys` and
`near` import TVM.

The store is `records/records.jsonl` in the cache folder (`NEEDLE_CACHE_DIR`, else the user's own).
The search writes and reads it; a compilation without trials never looks at it. Any number of
processes of one machine may use it, but not over a network file system: merge stores instead.

- A record belongs to a workload, and a workload to a key: the target with the processor's features,
  the versions of TVM, tvm-ffi, LLVM or CUDA, and the PassContext. Workloads are found by structural
  hash and then compared for structural equality. A difference in any of these makes another
  workload.
- A row states one fact that stays true, and its name is the SHA-256 of that fact. Merging two
  stores therefore takes the rows of both; concatenating their files does the same.
- Verdicts on records are rows too. A record committed without one is `measured`. Only `gated`
  records are served, and `rejected` outweighs every gate (`Store.decide`). A search is served its
  own records as soon as they pass the gate.
- A trial (what a tuning session spent on a record) is written in one line with its record and its
  verdict, and is durable when `RecordDatabase.commit_trial` returns. `Store.spent` tells a resumed
  session what is left of its budget. `RecordDatabase.known` tells it which candidates any session
  has tried: those that crashed, hung or were wrong are kept as rejected records.
- A search may start from records of near shapes (`near`): gated ones, under the same key, of a
  function that differs only in its extents.
- `python -m needle_tvm records list|show|merge|prune` manages the store.
"""
