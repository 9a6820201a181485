"""The projects section: projects and their service accounts."""
