"""What all planes and the API share: values, configuration, errors, and the pure rules of windows and groupings."""
