"""How facts are learned: a model is asked, and its reply is validated and stored."""
