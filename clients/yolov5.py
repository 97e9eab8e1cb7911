"""Defines the client `yolov5`, which detects objects. It shares these defaults with YOLOv5's
detect.py: images of 640 pixels, sides that are multiples of 32, scores above 0.25, an IoU of at
most 0.45."""

from clients import object_detection


class Client(object_detection.Client):
    """Serves YOLOv5, or any later YOLO whose config.pbtxt names the client `yolov5`."""
