"""`python -m loadgen` is `ultraserve-loadgen`."""

import sys

from loadgen.main import main

if __name__ == "__main__":
    sys.exit(main())
