"""`python -m prism`, for where the `prism` script is not on the path."""

from prism.cli import script

if __name__ == "__main__":  # worker processes import this module again under another name
    script()
