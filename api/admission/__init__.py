"""Who may come in, before anything is spent on them."""
