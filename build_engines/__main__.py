"""python -m build_engines build | list | inspect | verify | archive"""

import signal
import sys
from collections.abc import Sequence

from build_engines.commands.parser import make_parser
from build_engines.errors import BuildError

INTERRUPTED = 130  # a shell's status of a command that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0, 1 for a failure, 2 for a command that makes no sense."""
    parsed = make_parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does
    try:
        return int(parsed.run(parsed))
    except BuildError as err:
        return _failed(str(err), err.code)
    except ModuleNotFoundError as err:
        return _failed(f"this needs the package '{err.name}', which is not installed: make dev installs it", 1)
    except OSError as err:
        return _failed(str(err), 1)
    except KeyboardInterrupt:
        return _failed("interrupted; nothing was changed", INTERRUPTED)


def _failed(message: str, code: int) -> int:
    print(f"build_engines: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
