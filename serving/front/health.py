"""Whether the container works: Triton is live, and the table says that every model serves."""

from pathlib import Path

from serving.budget import NEVER, Deadline
from serving.errors import TooLate, TritonTimeout, TritonUnavailable
from serving.host.files import read_tritonserver
from serving.models.registry import Registry

ANSWER_SECONDS = 1.7  # nginx waits 2 s for /ping, as SageMaker does


class Health:
    """Answers /ping. The supervisor writes `status_file`."""

    def __init__(self, registry: Registry, status_file: Path) -> None:
        self.registry, self.status_file = registry, status_file

    def check(self) -> None:
        """Raise TritonUnavailable, or why a model does not serve. Never wait long."""
        try:
            self.check_live(Deadline.after(ANSWER_SECONDS))
        except (TritonTimeout, TooLate) as err:
            raise TritonUnavailable("tritonserver is running but does not answer: it hangs or is overloaded") from err
        if error := self.registry.models().unready():
            raise error

    def check_live(self, deadline: Deadline = NEVER) -> None:
        """Raise TritonUnavailable if Triton is not live."""
        if not self.registry.gateway.is_live(deadline):
            raise TritonUnavailable("tritonserver answers but is not live")

    def describe_triton(self) -> str:
        """Return what the supervisor says of tritonserver, in words; "" if it says nothing."""
        process = read_tritonserver(self.status_file)
        if process.state == "unknown":
            return ""
        last = f", after it {process.last_exit}" if process.last_exit else ""
        return f"tritonserver is {process.state} (start {process.starts}{last})"
