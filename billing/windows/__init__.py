"""Which windows of budgets have begun: of most tenants that come anew, none has."""
