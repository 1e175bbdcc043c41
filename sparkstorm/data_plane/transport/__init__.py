"""Transport: carries frames between tasks and makes an epoch's commit one atomic step."""
