"""The program: tensor programs in index notation, their specification, and the float64 interpreter: the oracle."""
