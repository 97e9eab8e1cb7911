r"""Documents Triton's faults and our workarounds. If you upgrade Triton, read this file first.

An entry says what Triton does, what works around it, and when the workaround can be removed.
"Remove when TEST passes" means that the test passes without the workaround, both with tritonserver
2.51.0 (24.10, from nvidia-pytriton 0.7.0) and with the later version in NVIDIA's image.

These faults need no constant below:

- Unloading an instance whose process has died never ends, and keeps about 36 threads and 1 MB of
  /dev/shm. Meanwhile the model can be loaded again, and the new instances can be unloaded. So to
  remove a model, Manager.unload_dead unloads it, loads it, and unloads it again; the states
  `reloading` and `refusing` in model_status/states.py exist for this. Remove when
  tests/model_lifecycle/test_crashes.py passes.
- Loading an unchanged model whose process has died does nothing. Manager.reload unloads it first.
  Remove together with the entry above.
- The model index fails ("failed to stat file") while a staged folder changes. Manager.index and
  Store share a lock. Remove when tests/model_lifecycle/test_multimodel.py passes.
- Unloading a model that is being loaded waits until the load has ended, and so does the next load.
  If the load does not end soon, Manager.unload kills the model's process first. Remove when
  tests/model_lifecycle/test_broken_off_loads.py passes.
- An ensemble without `platform: "ensemble"` is not loaded. repository/staging.py adds this line.
  Remove when tests/endpoint/test_ensembles.py passes.
- To complete configurations, Triton starts each Python model twice, and gives the first process 1 s
  to end. repository/completion.py completes them instead. Remove when loading such a model takes
  less than 0.2 s.
- Cancelling a stream while it sends a response can crash tritonserver, or keep it from answering
  any stream, because two threads lock two mutexes in opposite orders (stream_infer_handler.cc).
  Cancelling a fast stream did so once in 80 times, and cancelling a call once in 18,000 times.
  triton/gateway.py cancels no calls, and only those streams that have been quiet and have reported
  no error. A deadline that ends a call or stream is still a cancellation. Remove when
  tests/endpoint/test_streaming.py passes a hundred times.
- If a region of shared memory is unregistered, it is unmapped even while a request reads it.
  shared_memory.py never unregisters a region. Remove when both versions defer unregistering
  (server, pull request 7743); but keeping a region registered is also faster.
- Triton records every trace that it receives, even one that its caller does not sample.
  front/incoming.py forwards only sampled traces. Remove when tests/endpoint/test_tracing.py passes.
- Requesting `classification` of an output of strings, or of one without elements (shape [1, 0]),
  crashes tritonserver. bodies/kserve.py computes classes itself. Remove when
  tests/endpoint/test_classification.py passes.
- The stub's Python ignores PYTHONDONTWRITEBYTECODE, and writes bytecode into a model's folder.
  backends/stub_wait.c makes it obey. Remove when tests/endpoint/test_lifecycle.py passes.
- The HTTP endpoint does not find a model whose name contains a slash, and the Python backend does
  not find one whose name contains a space. model_lifecycle/on_post.py replaces these characters.
  Remove when tests/model_lifecycle/test_multimodel.py passes.
"""

import re

# Processes that die

# The only version of Triton with which backends/stub_wait.c was verified. That library makes the
# Python backend wait for a paused process, whose late answer would otherwise go to the next caller.
# Remove it when tests/endpoint/test_crashes.py passes without it.
STUB_WAIT_VERSION = "2.51.0"
# The number of reloads after which model_lifecycle/recovery.py restarts tritonserver. Each reload
# may leave a dead instance behind (see above). After 20 reloads, these may take 20 MB of a /dev/shm
# of 64 MB. Remove together with that entry.
MOST_RELOADS = 20

# Error texts. They may quote a caller, for example the name of an input, so the patterns match
# whole texts where possible. Triton prepends the request's id and the ensembles that called the
# model, and may append a Python traceback.

REQUEST_ID = re.compile(r"^\[request id: .*?\] ")
TRACEBACK = "\n\nAt:\n"
# The advice that Triton appends if a dimension of a tensor is wrong (infer_request.cc). It is for
# the model's author, and applies only to the first dimension.
NOTE = "NOTE: Setting a non-zero max_batch_size"
_BEFORE = r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
# Triton does not restart a process of a Python model that has died; calls to it fail
# (python_be.cc). The text names the process, unless the process died while it held the lock that
# the request waits for. triton/connection.py turns it into BackendDied. Remove when the backend
# restarts processes (python_backend, pull request 431).
DEAD_PROCESS = re.compile(
    _BEFORE + r"(Stub process (?:'[^']*' )?is not healthy|Failed to obtain the health mutex)\.?"
)
# The status UNAVAILABLE means that Triton is stopping (server.cc, sequence_batch_scheduler.cc,
# dynamic_batch_scheduler.cc), but also that the queue policy in config.pbtxt rejects the request
# (scheduler_utils.cc). Remove when these have different statuses.
STOPPING = re.compile(
    rf"{_BEFORE}Server (?:not ready|is stopping, scheduler for model has stopped accepting "
    rf"new inference requests)\.?"
)
QUEUE_POLICY = re.compile(_BEFORE + r"(Exceeds maximum queue size|Request timeout expired)\.?")
# The status for an unknown model is UNAVAILABLE, NOT_FOUND or INVALID_ARGUMENT. Remove when it is
# always NOT_FOUND.
UNKNOWN_MODEL = "Request for unknown model: "
# The status INVALID_ARGUMENT also means that Triton was restarted and does not know a region of
# shared memory (system_shared_memory_manager.cc), that a decoupled model was called without a
# stream, or that a step belongs to a sequence that has not begun or has ended. Remove when these
# have different statuses.
UNKNOWN_REGION = "Unable to find shared memory region"
DECOUPLED = "doesn't support models with decoupled transaction policy"
UNKNOWN_SEQUENCE = "must specify the START flag on the first request of the sequence"
# An error in a stream is a text without a status. Triton can be asked to send the status
# (triton_grpc_error), but then it crashes. This pattern matches the beginnings of the texts in
# infer_request.cc about invalid requests. Remove when triton_grpc_error works.
MISTAKES = re.compile(
    _BEFORE + r"(unexpected |expected |incomplete |inference (input|request) |input ')"
)
# The status INTERNAL can also mean that the sizes of tensors are wrong, for example that a text has
# more tokens than the model has positions. These are the error texts of ONNX Runtime's and
# TorchScript's operators, in NVIDIA's backends and in ours. Remove when backends return
# INVALID_ARGUMENT.
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
# The status INTERNAL can also mean that memory ran out. These texts come from frameworks, Triton
# and the operating system, and include all that Triton's SageMaker endpoint recognizes. Remove when
# backends return RESOURCE_EXHAUSTED.
OUT_OF_MEMORY = re.compile(
    r"(?i:out[ _]?of[ _]?memory)|MemoryError|bad_alloc|RESOURCE_EXHAUSTED|No space left on device"
    r"|(?<![A-Za-z])OOM(?![a-z])"  # not in BLOOM, nor in a model's name like ROOM_3
    r"|(?:[Ff]ailed to|Cannot) allocate memory|Failed to increase the shared memory pool size"
    r"|(?:Dst|Src) tensor is not initialized|CUDNN_STATUS_NOT_INITIALIZED"
    r"|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
)
# The text that Triton puts before the reason why a load failed. It is repeated for each ensemble
# and version above the model. We remove it from messages.
PREFACE = re.compile(r"^(load failed for model '[^']*': |version \d+ is at UNAVAILABLE state: )+")

# Seconds that a stub gets to connect. If it is killed earlier, its load never ends, and only a
# restart of tritonserver helps (model_lifecycle/manager.py). Remove when
# tests/model_lifecycle/test_broken_off_loads.py passes.
STUB_SECONDS = 3.0

# Requests that harm Triton

# Triton copies a sequence's id unchecked into a buffer of the size of CORRID's datatype. A string
# overflows the buffer of a number, and a number that is too large is truncated. If a string has
# less than 128 bytes, the rest of the buffer contains earlier ids or uninitialized memory, which
# the model reads too: it rejects the request, or its process dies. So sessions.py (Sequencing)
# checks that ids fit the datatype. With the direct strategy, a model whose ids are strings
# sometimes fails anyway, probably because an empty slot contains such a string too: use numbers
# there. Remove when tests/fuzz/test_sequences.py passes.

# The beginning of the shape of a batch without rows. Whatever the backend, Triton accepts such a
# batch and never answers; it answers all other empty shapes. job.py rejects such batches. Remove
# when tests/endpoint/test_edge_bodies.py passes.
NO_ROWS = (0,)
