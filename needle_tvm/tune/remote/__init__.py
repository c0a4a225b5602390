"""The tracker and the servers that candidates are measured on, by TVM's own RPC protocol."""
