"""The e-graph: term encoding, rule files, saturation in a worker process, proof and refutation."""
