"""The zoo: trained policies inside this package, each with a card: where it comes from, what it is worth."""
