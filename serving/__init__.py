"""The code that serves the models. docs/architecture.md lists its packages and what each is for."""

VERSION = "0.1.1"  # the version of the whole project; `make release` changes it
