"""Converts requests to a model's tensors, and the model's outputs to predictions. A client is a
module that does this for one task (`text`: for several). The parameter `client` in config.pbtxt
names the module.

A user's own client imports what it needs from here. These names are stable (docs/clients.md):

    from clients import TEXT, DecodingError, ModelClient, Parameter
"""

from clients.base import Model as Model
from clients.base import ModelClient as ModelClient
from clients.base import Names as Names
from clients.base import Parameter as Parameter
from clients.base import Tensors as Tensors
from clients.base import TensorSpec as TensorSpec
from clients.base import check_time as check_time
from serving.codecs import ENCODED_IMAGE as ENCODED_IMAGE
from serving.codecs import IMAGE as IMAGE
from serving.codecs import JSON as JSON
from serving.codecs import PIXELS as PIXELS
from serving.codecs import ROW as ROW
from serving.codecs import TEXT as TEXT
from serving.errors import DecodingError as DecodingError
from serving.errors import InferenceFailed as InferenceFailed
from serving.errors import InvalidRequest as InvalidRequest
from serving.errors import NotAcceptable as NotAcceptable

# maps the name of a well-known network to the client for its task
CLIENT_ALIASES = {"bert": "text", "resnet": "image_classification", "yolov5": "object_detection"}
