"""What other prices would have made of what was used."""
