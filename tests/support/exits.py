"""The code of a model on Triton's Python backend that ends its process, or hangs, when it is told to."""

EXITS = '''
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """y = x; its process exits with status 3 at 13, and hangs at 101."""

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "x").as_numpy()) for each in requests]

    def answer(self, x):
        if x.max() == 13:
            os._exit(3)
        while x.max() == 101:
            time.sleep(1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
'''
