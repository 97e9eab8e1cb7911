"""What gunicorn loads."""

import os

from predictor import create_app
from serving.settings.table import Settings
from serving.settings.triton_access import TritonAccess

settings = Settings.from_env(os.environ)
app = create_app(settings, TritonAccess.read(settings.triton_access_file))
