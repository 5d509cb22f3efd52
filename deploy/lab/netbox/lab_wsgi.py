"""NetBox's WSGI application, with its own style sheets and scripts.

Run by gunicorn inside NetBox's environment. A production site has a web server for the static files;
the lab lets Django find them in the installed package, which saves collecting 50 MB of copies.
"""

from django.contrib.staticfiles.handlers import StaticFilesHandler  # type: ignore[import-not-found]
from netbox.wsgi import application as netbox_application  # type: ignore[import-not-found]

application = StaticFilesHandler(netbox_application)
