"""`python -m kernel_lab`: see cli.py."""

import sys

from kernel_lab.cli import main

sys.exit(main())
