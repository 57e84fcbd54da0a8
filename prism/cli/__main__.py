"""`python -m prism.cli`, for where the `prism` script is not on the path."""

import sys

from prism.cli.app import main

if __name__ == "__main__":  # worker processes import this module again under another name
    sys.exit(main())
