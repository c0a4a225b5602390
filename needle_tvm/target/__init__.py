"""What code is compiled for: processors and GPUs, and the tools that belong to them."""
