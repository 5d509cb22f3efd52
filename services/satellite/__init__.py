"""The satellite: the one process at a site next to its hardware, and the only holder of the site's secrets."""
