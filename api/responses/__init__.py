"""The Responses API and conversations: a second form of chat requests, whose turns can be stored."""
