"""Child processes: the one class that starts, feeds, limits and kills them, and what a child does on its side.

The standard library alone: the machine with the device has little else.
"""
