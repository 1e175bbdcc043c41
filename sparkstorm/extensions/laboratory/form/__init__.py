"""JSON form of scheduling problems and answers: strict input, sorted output."""
