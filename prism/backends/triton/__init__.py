"""The Triton backend: emission, cross-compilation, the interpreter, timing on a device."""
