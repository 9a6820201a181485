"""Pages for operators of the service; every route checks that the caller is one."""
