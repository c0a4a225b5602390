"""Programs of the campaign that are exported as ONNX files and loaded again."""
