"""Running stages: planned, cached, resumed and recorded; nothing here knows of routing."""
