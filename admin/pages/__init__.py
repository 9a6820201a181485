"""The console's pages: each gathers from services what its template shows, and knows no HTTP."""
