"""What every section of the console shares over HTTP: sessions, guarded routes, rendering and forms."""
