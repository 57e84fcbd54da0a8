"""Passes over tile programs: from one to another that computes the same with less, or on better units."""
