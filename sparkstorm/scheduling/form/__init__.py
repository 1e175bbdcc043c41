"""Owns the JSON form of scheduling problems and answers: strict in what it reads, sorted in what it writes."""
