"""Run `python -m deploy COMMAND`; `python -m deploy --help` lists the commands."""

import sys

from deploy.commandline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
