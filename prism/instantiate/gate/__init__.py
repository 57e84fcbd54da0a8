"""The numeric gate: emitted kernels against the float64 oracle, on ordinary inputs and on adversarial ones."""
