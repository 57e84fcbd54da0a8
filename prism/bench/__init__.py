"""Benchmarks on a GPU, in two steps: prepared where prism is, measured where the GPU is.

functions.py  reference functions, as models write them          (torch; what `eager` and `torch.compile` run)
suite.py      the cases: function, shapes, bytes and operations, floor
prepare.py    search, proof, cross-compilation, check -> a folder of modules and configurations
measure.py    the folder on the device -> results, case by case  (torch and triton alone, in child processes)
results.py    medians, ratios, shares, the table
"""
