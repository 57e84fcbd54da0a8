"""Instantiation: search spaces over an sGraph's symbols, the cost model, and the tuning of configurations."""
