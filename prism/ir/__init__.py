"""What the representations have in common, and nothing of any one of them."""
