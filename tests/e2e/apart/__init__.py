"""End-to-end tests with stacks of their own: in another process than those that share the demo."""
