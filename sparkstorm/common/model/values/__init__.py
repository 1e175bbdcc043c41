"""Values of tuples and states: codec, types of columns, tagged text, classes by registration."""
