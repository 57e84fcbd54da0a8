"""Front ends: ONNX files and torch functions, each to the same Program in index notation."""
