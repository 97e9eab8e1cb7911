"""A folder that stands for S3: s3://BUCKET/KEY is FOLDER/BUCKET/KEY."""

import re
from pathlib import Path

from serving.host.files import replace_file
from simulate.archives import find
from simulate.errors import ValidationError

_LOCATION = re.compile(r"s3://([^/]+)/(.+)")


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, location: str) -> Path | None:
        """The file of an object; None when there is none. Raises ValidationError."""
        return find(self.root, self._key(location))

    def write(self, location: str, data: bytes) -> None:
        """Writes an object atomically, so that nobody reads an incomplete one."""
        path = self.root / self._key(location)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)

    def _key(self, location: str) -> str:
        match = _LOCATION.fullmatch(location)
        if not match or ".." in Path(location).parts:
            raise ValidationError(f"{location!r} is not the location of an object in S3; use s3://BUCKET/KEY")
        return f"{match[1]}/{match[2]}"
