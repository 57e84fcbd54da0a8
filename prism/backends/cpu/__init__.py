"""The C++ backend: sGraphs as C++17 for the CPU, compiled by the system's compiler and loaded with ctypes."""
