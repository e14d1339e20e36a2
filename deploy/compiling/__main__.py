"""`python -m deploy.compiling` compiles the checkout for the Python that runs it, if that was not done."""

import sys

from deploy.compiling.checkout import main

if __name__ == "__main__":
    sys.exit(main())
