"""Optional features, one folder each. The planes do not import them."""
