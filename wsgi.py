"""What gunicorn loads."""

import os

from predictor import create_app
from serving.settings import Settings

app = create_app(Settings.from_env(os.environ))
