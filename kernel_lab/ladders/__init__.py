"""The ladders: one file for each workload and device, one function for each rung."""
