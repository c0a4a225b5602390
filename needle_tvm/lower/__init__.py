"""From a Relax module to a library: the stages' passes, merged kernels, CUDA graphs, code."""
