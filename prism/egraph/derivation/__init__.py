"""Derivations: chains of named rule instances, found in the e-graph and written down as certificates."""
