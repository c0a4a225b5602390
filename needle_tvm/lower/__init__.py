"""From a Relax module to a library: the passes of each stage, merged kernels, CUDA graphs, code."""
