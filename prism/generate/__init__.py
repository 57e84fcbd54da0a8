"""The implementations that there are of a program: its regions, and the sGraphs of each."""
