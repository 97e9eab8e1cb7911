"""The client `resnet`: image classification. The defaults are a ResNet's input: the shorter side
becomes 1/0.875 of the network's, the centre is cut out, with ImageNet's mean and std."""

from clients import image_classification


class Client(image_classification.Client):
    """Serves a ResNet, or any other classifier whose config.pbtxt names the client `resnet`."""
