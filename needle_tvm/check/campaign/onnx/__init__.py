"""Programs of the campaign that go out as ONNX files and come back."""
