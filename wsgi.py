"""What gunicorn loads."""

import os

from predictor import create_app
from serving.settings.table import Settings

app = create_app(Settings.from_env(os.environ))
