"""Measure candidates on other machines: tracker, server and client, over TVM's RPC protocol."""
