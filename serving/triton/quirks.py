r"""Workarounds for Triton's faults. If you upgrade Triton, read this file first.

An entry says what Triton does, what works around it, and when that may go: the test that it names
must hold without the workaround, with tritonserver 2.51.0 (24.10, of nvidia-pytriton 0.7.0) and
with the later one of NVIDIA's image.

Quirks without a text or number of their own:

- An unload of an instance whose process has died never ends, and keeps about 36 threads and 1 MB of
  /dev/shm. A load goes on beside it, and its new instances can be unloaded. So to remove a model,
  Manager.unload_dead unloads, loads and unloads it again; the states `reloading` and `refusing` of
  model_status/states.py are for this. Goes when tests/model_lifecycle/test_crashes.py holds.
- A load of an unchanged model whose process has died does nothing. Manager.reload unloads it first.
  Goes when the one above goes.
- The index of models fails ("failed to stat file") while a staged folder changes. Manager.index and
  Store share a lock. Goes when tests/model_lifecycle/test_multimodel.py holds.
- An unload of a model that is being loaded waits until the load has ended, and so does the next
  load. Manager.unload kills the model's process first. Goes when
  tests/model_lifecycle/test_broken_off_loads.py holds.
- An ensemble without `platform: "ensemble"` is not loaded. repository/staging.py adds it. Goes when
  tests/endpoint/test_ensembles.py holds.
- To complete configurations, each Python model is started twice, and the first process gets a
  second to end. repository/completion.py completes them instead. Goes when a load of such a model
  takes less than 0.2 s.
- A stream that is cancelled after its error can crash tritonserver. Responses.close reads on to the
  end. Goes when tests/endpoint/test_streaming.py holds a hundred times.
- A region of shared memory that is unregistered is unmapped even while a request reads it.
  shared_memory.py never unregisters one. Goes when both versions have deferred unregistering
  (server, pull request 7743); but a region that stays is faster.
- Triton records each trace that it gets, even one that its caller does not sample.
  front/incoming.py passes on sampled ones only. Goes when tests/endpoint/test_tracing.py holds.
- `classification` of an output of strings crashes tritonserver. bodies/kserve.py computes classes
  itself. Goes when tests/endpoint/test_classification.py holds.
- The stub's Python ignores PYTHONDONTWRITEBYTECODE and writes bytecode into a model's folder.
  backends/stub_wait.c sets it. Goes when tests/endpoint/test_lifecycle.py holds.
- The HTTP endpoint finds no model whose name has a slash, and the Python backend none whose name
  has a space. model_lifecycle/on_post.py replaces them. Goes when
  tests/model_lifecycle/test_multimodel.py holds.
"""

import re

# Processes that die

# With this version alone backends/stub_wait.c was verified: it makes the Python backend wait for a
# paused process, whose late answer would become the next caller's. Goes when
# tests/endpoint/test_crashes.py holds
# without the library.
STUB_WAIT_VERSION = "2.51.0"
# Reloads before model_lifecycle/recovery.py has tritonserver restarted. Each may leave a dead
# instance (above): 20 MB of a /dev/shm of 64 MB. Goes with that quirk.
MOST_RELOADS = 20

# Texts of errors. A caller can put any words into one, such as the name of an input, so whole texts
# are matched. Before it Triton writes the request's id and the ensembles that it came through, and
# after it a traceback
# of Python.

REQUEST_ID = re.compile(r"^\[request id: .*?\] ")
TRACEBACK = "\n\nAt:\n"
_BEFORE = r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
# Triton restarts no process of a Python model that has died; calls of it fail (python_be.cc). The
# text names the process, unless it died while it held the lock for which the request waits.
# triton/connection.py makes it BackendDied. Goes when the backend restarts processes
# (python_backend, pull request 431).
DEAD_PROCESS = re.compile(
    _BEFORE + r"(Stub process (?:'[^']*' )?is not healthy|Failed to obtain the health mutex)\.?"
)
# UNAVAILABLE means that Triton is being stopped (server.cc, sequence_batch_scheduler.cc,
# dynamic_batch_scheduler.cc), and also that the queue policy in config.pbtxt refuses the request
# (scheduler_utils.cc). Goes when these have statuses of their own.
STOPPING = re.compile(
    rf"{_BEFORE}Server (?:not ready|is stopping, scheduler for model has stopped accepting "
    rf"new inference requests)\.?"
)
QUEUE_POLICY = re.compile(_BEFORE + r"(Exceeds maximum queue size|Request timeout expired)\.?")
# An unknown model is UNAVAILABLE, NOT_FOUND or INVALID_ARGUMENT. Goes when it is NOT_FOUND alone.
UNKNOWN_MODEL = "Request for unknown model: "
# A region that Triton does not know since its restart is INVALID_ARGUMENT
# (system_shared_memory_manager.cc), as are a call of a decoupled model that is no stream, and a
# step of a sequence that has not begun or is over. Goes as the above.
UNKNOWN_REGION = "Unable to find shared memory region"
DECOUPLED = "doesn't support models with decoupled transaction policy"
UNKNOWN_SEQUENCE = "must specify the START flag on the first request of the sequence"
# An error in a stream is a text without a status; Triton crashes if it is asked for the status
# (triton_grpc_error). These are the texts of infer_request.cc about wrong requests. Goes when
# triton_grpc_error can be
# sent.
MISTAKES = re.compile(
    r"^(\[request id: .*?\] )?(unexpected |expected |incomplete |inference (input|request) "
    r"|input ')"
)
# INTERNAL also means that tensors have sizes which do not go together, such as more tokens than the
# model has positions: what operators of ONNX Runtime and TorchScript say in NVIDIA's backends and
# in ours. Goes when backends answer INVALID_ARGUMENT.
WRONG_SIZES = re.compile(
    r"onnx runtime error 2: "  # INVALID_ARGUMENT
    r"|Non-zero status code returned while running .* node\..*"
    r"(?: was false\.|cannot be reshaped|dimension mismatch|mismatched dimensions|must "
    r"match|should not be greater"
    r"|Unknown Category)"
    r"|failed in the TorchScript interpreter\..*RuntimeError: (?:The size of tensor |index "
    r"out of range in self"
    r"|shape '.*' is invalid for|mat1 and mat2 |Calculated padded input size |Given .* "
    r"expected input)",
    re.DOTALL,
)
# INTERNAL also means that memory is short: texts of frameworks, of Triton and of the system. Those
# of Triton's SageMaker endpoint are all among them. Goes when backends answer RESOURCE_EXHAUSTED.
OUT_OF_MEMORY = re.compile(
    r"(?i:out[ _]?of[ _]?memory)|MemoryError|bad_alloc|RESOURCE_EXHAUSTED|No space left on device"
    r"|(?<![A-Za-z])OOM(?![a-z])"  # not in BLOOM, nor in a model's name like ROOM_3
    r"|(?:[Ff]ailed to|Cannot) allocate memory|Failed to increase the shared memory pool size"
    r"|(?:Dst|Src) tensor is not initialized|CUDNN_STATUS_NOT_INITIALIZED"
    r"|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
)
# What Triton writes before the reason of a failed load, for each ensemble and version. It is cut
# off.
PREFACE = re.compile(r"^(load failed for model '[^']*': |version \d+ is at UNAVAILABLE state: )+")

# Seconds that a stub gets until it has connected. If it is killed before, its load never ends, and
# only a restart of tritonserver helps (model_lifecycle/manager.py). Goes when
# tests/model_lifecycle/test_broken_off_loads.py holds.
STUB_SECONDS = 3.0

# Requests that harm it

# A sequence's id goes unchecked into memory of the size of CORRID's datatype: a string overflows
# the place of a number, and a number is cut. Behind a string of less than 128 bytes the memory is
# of earlier ids or of nobody, and the model reads it too: it is refused, or its process dies.
# headers.py (Sequencing) reads ids by that datatype. With the direct strategy a model with strings
# as ids fails at times, probably because an empty slot is such a string too: use numbers there.
# Goes when tests/fuzz/test_sequences.py holds.

# The first dimension of a batch without rows. Triton takes such a batch and never answers, whatever
# the backend; it answers all other empty shapes. job.py refuses it. Goes when
# tests/endpoint/test_hostile_bodies.py holds.
NO_ROWS = (0,)
