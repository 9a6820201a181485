"""Routes for other services that call us, each authenticated by a signature of its own."""
