"""Web page of a cluster: a server process, its protections, and the page's own routes and files."""
