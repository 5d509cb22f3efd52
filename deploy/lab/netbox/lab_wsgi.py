"""NetBox's WSGI application as the lab serves it: with its style sheets, without GraphQL.

Run by gunicorn inside NetBox's environment. A production site has a web server for the static files;
the lab lets Django find them in the installed package, which saves collecting 50 MB of copies. NetBox
builds its GraphQL schema on every start even with GRAPHQL_ENABLED off, which is more than half of its
start-up time (8 of 14 CPU seconds) and 45 MB; nothing here asks GraphQL, so an empty one takes its place.
"""

import gc
import sys
import types

gc.disable()  # Loading allocates hundreds of thousands of objects that all stay: looking for garbage finds none.

_no_schema = types.ModuleType("netbox.graphql.schema")
_no_schema.schema = None  # type: ignore[attr-defined]
sys.modules["netbox.graphql.schema"] = _no_schema

from django.contrib.staticfiles.handlers import StaticFilesHandler  # type: ignore[import-not-found]  # noqa: E402
from netbox.wsgi import application as netbox_application  # type: ignore[import-not-found]  # noqa: E402

gc.freeze()
gc.enable()

application = StaticFilesHandler(netbox_application)
