"""A storage plugin for pannier in Python. docs/plugins.md of pannier has the rules."""

from dirs import Dirs
from plugin import serve
from protocol import storage

serve(Dirs(), storage.StorageService, name="python-dirs", version="0.1.0", kind="storage.v1")
