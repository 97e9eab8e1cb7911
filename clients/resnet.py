"""Defines the client `resnet`, which classifies images. Its defaults are a ResNet's: the image's
shorter side is resized to 1/0.875 of the side of the network's input, the centre is cropped, and
pixels are normalized by ImageNet's mean and std."""

from clients import image_classification


class Client(image_classification.Client):
    """Serves a ResNet, or any other image classifier whose config.pbtxt names the client
    `resnet`."""
