"""A front door for pannier in Python. docs/plugins.md of pannier has the rules."""

from page import Page
from plugin import serve
from protocol import events, frontend, host

serve(
    Page(), frontend.FrontendService, host.HostService, events.EventService,
    name="python-page", version="0.1.0", kind="frontend.v1",
)
