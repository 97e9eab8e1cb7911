"""Makes the models for the streaming and session tests, on Triton's Python backend."""

from pathlib import Path

from tests.support.harness import NUMBER_CLIENT, make_python_model

TELLER = '''
import threading
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Send the words of the text one by one, `delay` seconds apart.

    "fail" makes the request fail at this word. Instead of "cancelled?", the number of cancelled
    requests is sent. A path is sent once the file exists. Instead of sending ">" and a path, the
    file is made."""

    def initialize(self, args):
        self.cancelled = 0

    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            words = text.reshape(-1)[0].decode().split()
            delay = pb_utils.get_input_tensor_by_name(request, "delay")
            seconds = float(delay.as_numpy().reshape(-1)[0]) if delay else 0.0
            arguments = (request.get_response_sender(), words, seconds)
            threading.Thread(target=self.tell, args=arguments).start()

    def tell(self, sender, words, seconds):
        for word in words:
            if word.startswith(">"):
                Path(word[1:]).touch()
                continue
            if self.is_cancelled_within(sender, seconds, word):
                break
            if word == "fail":
                error = pb_utils.TritonError("it was told to fail")
                sender.send(pb_utils.InferenceResponse(error=error))
                break
            said = str(self.cancelled) if word == "cancelled?" else word
            output = pb_utils.Tensor("text_output", np.array(SHAPE, dtype=object))
            about = pb_utils.Tensor("about", np.array(ABOUT, dtype=np.float32))
            sender.send(pb_utils.InferenceResponse([output, about]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled_within(self, sender, seconds, word):
        until = time.monotonic() + seconds
        while True:
            if sender.is_cancelled():
                self.cancelled += 1
                return True
            if time.monotonic() >= until and (not word.startswith("/") or Path(word).exists()):
                return False
            time.sleep(0.01)
'''

TELLER_CLIENT = """
import numpy as np

from clients.base import ModelClient, Parameter
from serving.codecs import TEXT


class Client(ModelClient):
    codec = TEXT
    example = b"hello"
    parameters = (
        Parameter("delay", 0.0, "seconds between two words"),
        Parameter("upper", False, "whether the words are told in capitals"),
    )

    def prepare(self, instances, parameters):
        return {"text_input": np.array([[text.encode()] for text in instances], dtype=object)}

    def postprocess(self, outputs, inputs, instances, parameters):
        words = [row[0].decode() for row in outputs["text_output"]]
        return [word.upper() for word in words] if parameters["upper"] else words
"""

TENSORS = (
    'input { name: "text_input" data_type: TYPE_STRING dims: [1] }\n'
    'input { name: "delay" data_type: TYPE_FP32 dims: [1] optional: true }\n'
    'output { name: "text_output" data_type: TYPE_STRING dims: [1] }\n'
    'output { name: "about" data_type: TYPE_FP32 dims: [2] }\n'
)


def make_teller(repository: Path) -> None:
    """Make `teller`, which is decoupled and sends one response per word. It has no batch dimension
    and no client."""
    model = TELLER.replace("SHAPE", "[said.encode()]").replace("ABOUT", "[len(said), seconds]")
    make_python_model(
        repository / "teller", f"{TENSORS}model_transaction_policy {{ decoupled: true }}\n", model
    )


def make_reader(repository: Path) -> None:
    """Make `reader`, the teller with a batch dimension and a client."""
    model = TELLER.replace("SHAPE", "[[said.encode()]]").replace("ABOUT", "[[len(said), seconds]]")
    config = f"max_batch_size: 4\n{TENSORS}model_transaction_policy {{ decoupled: true }}\n"
    make_python_model(repository / "reader", config, model, TELLER_CLIENT)


TALKER = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Gives the text back; "fail TEXT" fails with that text."""

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "text_input") for request in requests]
        return [self.answer(text.as_numpy()) for text in texts]

    def answer(self, text):
        said = b" ".join(text.reshape(-1)).decode(errors="replace")
        if said.startswith("fail "):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(said[5:]))
        if said.startswith("raise "):
            raise ValueError(said[6:])
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
'''


def make_echo(repository: Path) -> None:
    """Make `echo`, an ordinary model that takes one text and returns one."""
    config = (
        'max_batch_size: 4\ninput { name: "text_input" data_type: TYPE_STRING dims: [-1] }\n'
        'output { name: "text_output" data_type: TYPE_STRING dims: [-1] }\n'
    )
    make_python_model(repository / "echo", config, TALKER)


SUMMER = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Return the sum of the sequence's numbers so far, and how many they were."""

    def initialize(self, args):
        self.sequences = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0]

        if not read("READY"):  # the direct strategy fills its free slots with empty requests
            return pb_utils.InferenceResponse([
                pb_utils.Tensor("total", np.zeros((1, 1), dtype=np.float32)),
                pb_utils.Tensor("count", np.zeros((1, 1), dtype=np.int32)),
            ])
        key = request.correlation_id()
        if read("START"):
            self.sequences[key] = (0.0, 0)
        total, count = self.sequences[key]
        total += float(read("number"))
        count += 1
        self.sequences[key] = (total, count)
        if read("END"):
            del self.sequences[key]
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("total", np.array([[total]], dtype=np.float32)),
            pb_utils.Tensor("count", np.array([[count]], dtype=np.int32)),
        ])
'''

SUMMER_CLIENT = NUMBER_CLIENT.replace("INPUT", "number").replace(
    "PREDICTION", '{"total": float(outputs["total"][n][0]), "count": int(outputs["count"][n][0])}'
)


def _summer_config(strategy: str, idle_seconds: float, id_type: str = "") -> str:
    """Return the configuration of a summer. `id_type` is the datatype of CORRID. If it is "", the
    model does not get the id."""
    identifier = ""
    if id_type:
        identifier = (
            f'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID '
            f"data_type: {id_type} }} }}\n"
        )
    flags = "".join(
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{name} '
        f"int32_false_true: [0, 1] }} }}\n"
        for name in ("START", "END", "READY")
    )
    return (
        'max_batch_size: 8\ninput { name: "number" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "total" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "count" data_type: TYPE_INT32 dims: [1] }\n'
        f"sequence_batching {{\nmax_sequence_idle_microseconds: "
        f"{round(idle_seconds * 1e6)}\n{strategy}\n{flags}{identifier}}}\n"
    )


def make_summer(repository: Path, idle_seconds: float = 30) -> None:
    """Make `summer`, a sequence model with the oldest strategy, numeric ids, and a client."""
    config = _summer_config("oldest { max_candidate_sequences: 64 }", idle_seconds, "TYPE_UINT64")
    make_python_model(repository / "summer", config, SUMMER, SUMMER_CLIENT)


def make_direct_summer(repository: Path) -> None:
    """Make `direct_summer`, a summer with the direct strategy and 32-bit ids, without a client."""
    config = _summer_config("direct { }", 30, "TYPE_INT32")
    make_python_model(repository / "direct_summer", config, SUMMER)


def make_brief_summer(repository: Path, idle_seconds: float = 4) -> None:
    """Make `brief_summer`, a summer with the oldest strategy, ids of any type and a short idle
    time, without a client."""
    config = _summer_config("oldest { max_candidate_sequences: 4 }", idle_seconds)
    make_python_model(repository / "brief_summer", config, SUMMER)


# the datatypes of CORRID; "" for a model that does not get the id
ID_TYPES = ("", "TYPE_UINT32", "TYPE_INT32", "TYPE_UINT64", "TYPE_INT64", "TYPE_STRING")
STRATEGIES = {"direct": "direct { }", "oldest": "oldest { max_candidate_sequences: 64 }"}


def summer_name(strategy: str, id_type: str) -> str:
    """Return the name of one of make_summers' models."""
    return f"{strategy}_{id_type.removeprefix('TYPE_').lower() or 'any'}"


def make_summers(repository: Path, idle_seconds: float = 2) -> None:
    """Make a `summer` of each strategy and each datatype of ids, without a client."""
    for strategy, text in STRATEGIES.items():
        for id_type in ID_TYPES:
            config = _summer_config(text, idle_seconds, id_type)
            make_python_model(repository / summer_name(strategy, id_type), config, SUMMER)


def make_named_summer(repository: Path) -> None:
    """Make `named_summer`, a summer with strings as ids, and `chained_summer`, an ensemble that
    calls only `direct_summer`."""
    config = _summer_config(STRATEGIES["oldest"], 30, "TYPE_STRING")
    make_python_model(repository / "named_summer", config, SUMMER)
    names = ("number", "total", "count")
    maps = {name: f'{{ key: "{name}" value: "{name}" }}' for name in names}
    (repository / "chained_summer/1").mkdir(parents=True)
    (repository / "chained_summer/config.pbtxt").write_text(
        'platform: "ensemble"\nmax_batch_size: 8\n'
        'input { name: "number" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "total" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "count" data_type: TYPE_INT32 dims: [1] }\n'
        'ensemble_scheduling { step { model_name: "direct_summer" model_version: -1 '
        f"input_map {maps['number']} output_map {maps['total']} output_map {maps['count']} }} }}\n"
    )
