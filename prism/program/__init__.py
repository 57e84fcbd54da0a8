"""The program: index notation for tensor programs, its specification, and the float64 interpreter that is the oracle."""
