"""sGraphs: families of implementations whose tile, split and grid sizes are unbound symbols."""
