"""The models prism is shown on: one script each, every one of which writes a real ONNX file into `examples/models/`."""
