"""Creates the app that gunicorn loads."""

import os

from predictor import create_app
from serving.settings.settings import SECRETS, Settings

settings = Settings.from_env(os.environ)
for name in SECRETS:  # hide the secrets from models' clients and from programs that they start
    os.environ.pop(name, None)
shared_prefix = settings.shared_memory_file.read_text(encoding="utf-8")  # written by `serve`
app = create_app(settings, shared_prefix)
