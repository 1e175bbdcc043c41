"""Web process of a cluster: the page, Storm's REST interface and our own, and metrics. Needs the
extra `web`.
"""
