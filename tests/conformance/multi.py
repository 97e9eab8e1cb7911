"""Rows 6, 7 and 9 of CONTRACT section 3: the routes of a multi-model endpoint, in the order of the
calls."""

from tests.conformance import wire
from tests.conformance.behaviours import (
    ATTRIBUTES,
    COME_BACK,
    Ask,
    Row,
    See,
    Side,
    compact,
    shown,
    tensor,
)
from tests.conformance.models import make_broken, make_ensemble, make_talker
from tests.conformance.probes import echo_of, status
from tests.conformance.wire import Headers

WORDS = "the status has a text"
TOLD = "the answer says what was loaded"
NAMED = "JSON is called JSON"
DEADLY = "400; native dies of it"
METHODS = "405 with the methods that there are"
HEADERLESS = "the model's name in the path is enough"
BELONGS = "400: an archive lies below /opt/ml/models, and nothing else is read"
TWICE = "it is loaded twice; native takes an archive once"
NO_NAME = "404, as no model is called that; native passes over the end of the path"
LISTED = "a model that was loaded with a Target-Model header is listed; native gives {} for it"
TARGET = "X-Amzn-SageMaker-Target-Model"
TRACED = {ATTRIBUTES: "a=1"}
MENDABLE = "500, as the model failed and not the caller"

OUT_OF_MEMORY = (
    *(
        "CUDA out of memory",
        "CUDA_OUT_OF_MEMORY",
        "Out of memory",
        "Out Of Memory",
        "out of memory",
        "MemoryError",
    ),
    *("OutOfMemory", "OOM", "Dst tensor is not initialized", "Src tensor is not initialized"),
    *("CNMEM_STATUS_OUT_OF_MEMORY", "CUDNN_STATUS_NOT_INITIALIZED", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "Failed to allocate memory", "failed to allocate memory"),
    "No space left on device",
)


def make_archives(side: Side) -> None:
    """Make folders in the form in which the platform unpacks archives: ID/model contains the
    content of the archive."""
    for name in ("talker", "twin"):
        make_talker(side.archive(name) / "talker")
    make_talker(side.archive("at_root"))
    make_talker(side.archive("deeper") / "sub" / "talker")
    for name in ("ensemble", "ensemble2"):
        make_ensemble(side.archive(name))
    make_broken(side.archive("broken") / "broken", "these words")
    make_broken(
        side.archive("hungry") / "hungry",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried 2 GiB",
    )
    (side.archive("empty") / "nothing").mkdir(parents=True)
    make_talker(side.elsewhere / "talker")


def masked(side: Side, text: str) -> str:
    text = text.replace(str(side.elsewhere), "/elsewhere").replace(f"{side.token}.", "")
    return text.replace(str(side.archives), "/opt/ml/models")


def call(
    method: str, path: str, body: object = None, headers: Headers | None = None, see: See = shown
) -> Ask:
    """Return a request to a route of /models. An object is sent as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else compact(body)

    def asked(side: Side) -> str:
        answer = wire.send(side.port, method, path, headers, data)
        return masked(side, see(answer))

    return asked


def load(name: str, target: str = "", sub: str = "", url: str = "", archive: str = "") -> Ask:
    """Return a POST to /models. `target` is the Target-Model header."""

    def asked(side: Side) -> str:
        folder = url or f"{side.archive(archive or name)}{sub}"
        headers = {TARGET: target} if target else {}
        body = {"model_name": name, "url": folder.replace("ELSEWHERE", str(side.elsewhere))}
        return masked(side, shown(wire.send(side.port, "POST", "/models", headers, compact(body))))

    return asked


def invoke(
    name: str, text: str = "hello", target: str = "", see: See = shown, **headers: str
) -> Ask:
    body = {"inputs": [tensor("text_input", "BYTES", [1], [text])]}
    named = {TARGET: target} if target else {}
    return call("POST", f"/models/{name}/invoke", body, named | headers, see)


def row(title: str, ask: Ask, improvement: str = "", section: str = "6") -> Row:
    return Row(section, title, ask, improvement)


BEFORE = [
    row("GET /ping without a model", call("GET", "/ping"), section="9"),
    row(
        "POST /ping",
        call("POST", "/ping"),
        "a health check may use POST (SageMaker's contract)",
        "9",
    ),
    row("List without a model", call("GET", "/models"), NAMED),
    row("Get of what is not loaded", call("GET", "/models/talker"), WORDS),
    row("Unload of what is not loaded", call("DELETE", "/models/talker"), WORDS),
    row("Invoke of what is not loaded", invoke("talker"), WORDS),
    row("PUT /models", call("PUT", "/models", {}), METHODS),
    row("DELETE /models", call("DELETE", "/models"), METHODS),
    row("PUT /models/NAME", call("PUT", "/models/talker", {}), METHODS),
    row("Load of no JSON", call("POST", "/models", b"hello"), DEADLY),
    row("Load of an empty body", call("POST", "/models")),
    row("Load without a url", call("POST", "/models", {"model_name": "talker"})),
    row("Load without a name", call("POST", "/models", {"url": "/opt/ml/models/none/model"})),
    row(
        "Load of a name that is no string",
        call("POST", "/models", {"model_name": 7, "url": "/x"}),
        DEADLY,
    ),
    *(
        row(f"Load from {url}", load("bad", url=url))
        for url in (
            "/dev/shm/model",
            "/proc/self/model",
            "/sys/model",
            "/opt/ml/models/../../../dev/model",
            "/opt/ml/models/none/model",
        )
    ),
    row("Load of a folder elsewhere", load("elsewhere", url="ELSEWHERE"), BELONGS),
    row("… which is then not loaded", invoke("elsewhere", see=status), BELONGS),
    row("Load of an archive without a model", load("empty")),
]

LOADED = [
    row("Load", load("talker"), TOLD),
    row("Load of what is loaded", load("talker")),
    row("Load of the same archive under another name", load("again", archive="talker"), TWICE),
    row("Get", call("GET", "/models/talker"), NAMED),
    row("Invoke", invoke("talker")),
    row(
        "Invoke gives Custom-Attributes back",
        invoke("talker", see=echo_of(ATTRIBUTES), **TRACED),
        COME_BACK,
    ),
    row("Invoke of no JSON", call("POST", "/models/talker/invoke", b"hello")),
    row(
        "Invoke of a wrong input",
        call("POST", "/models/talker/invoke", {"inputs": [tensor("q", "FP32", [1], [1])]}),
    ),
    row("GET of invoke", call("GET", "/models/talker/invoke"), NO_NAME),
    row("POST /models/NAME", call("POST", "/models/talker", {}), METHODS),
    row("A model fails", invoke("talker", "fail these words"), MENDABLE),
    row("A model raises", invoke("talker", "raise these words"), MENDABLE),
    *(
        row(f"A model fails: {text}", invoke("talker", f"fail with {text} here"), section="7")
        for text in OUT_OF_MEMORY
    ),
    row(
        "A model fails: OUT OF MEMORY",
        invoke("talker", "fail OUT OF MEMORY"),
        "in any case of its letters",
        "7",
    ),
    row("A model raises: out of memory", invoke("talker", "raise CUDA out of memory"), section="7"),
    row("Load with a Target-Model header", load("twin", target="twin-1.tar.gz"), TOLD),
    row(
        "… of which the header is taken already",
        load("other", target="twin-1.tar.gz", archive="at_root"),
    ),
    row("Two archives with a folder of one name: the first", invoke("talker")),
    row(
        "Two archives with a folder of one name: the second", invoke("twin", target="twin-1.tar.gz")
    ),
    row("Invoke without the header that it was loaded with", invoke("twin"), HEADERLESS),
    row("List", call("GET", "/models"), LISTED),
    row("Get of one with a header", call("GET", "/models/twin"), NAMED),
    row("Unload", call("DELETE", "/models/talker")),
    row("Unload again", call("DELETE", "/models/talker"), WORDS),
    row("Invoke of what was unloaded", invoke("talker"), WORDS),
    row("The other goes on", invoke("twin", target="twin-1.tar.gz")),
    row("Load of what was unloaded", load("talker"), TOLD),
    row("Unload with a header", call("DELETE", "/models/twin", headers={TARGET: "twin-1.tar.gz"})),
]

LAYOUTS = [
    row("config.pbtxt at the archive's root", load("at_root"), TOLD),
    row("… invoke", invoke("at_root")),
    row("… get", call("GET", "/models/at_root"), "the url that was sent; native cuts it"),
    row("A url below model", load("deeper", sub="/sub"), TOLD),
    row("… invoke", invoke("deeper")),
    row("An ensemble and its parts", load("ensemble"), TOLD),
    row("… invoke", invoke("ensemble")),
    row("A second ensemble with parts of the same names", load("ensemble2"), TOLD),
    row("… invoke of the second", invoke("ensemble2")),
    row("… and of the first", invoke("ensemble")),
    row("… unload of the first", call("DELETE", "/models/ensemble")),
    row("… and the second goes on", invoke("ensemble2")),
    row("A load that fails", load("broken")),
    row("… again", load("broken")),
    row("… get", call("GET", "/models/broken"), WORDS),
    row("… invoke", invoke("broken"), WORDS),
    row("A load that is out of memory", load("hungry"), section="7"),
]

ROWS = [*BEFORE, *LOADED, *LAYOUTS]
