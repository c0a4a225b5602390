"""What front ends share that turn foreign graphs (ONNX, PyTorch) into needle's ops: the registry of
converters, values that are known while tracing, the budget, and errors that name a node."""
