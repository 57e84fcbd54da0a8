"""The cost model: what kernels take on a device, from counts to seconds."""
