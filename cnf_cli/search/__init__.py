"""Searches: from a tour or a proposal to better tours within a budget of rounds or seconds."""
