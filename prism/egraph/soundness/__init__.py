"""Soundness of rules: random interpretations that a wrong rule does not survive, and the simplest that shows it."""
