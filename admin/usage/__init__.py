"""The usage section: charts and tables of usage, requests and their receipts."""
