"""astrai: export a model file once, serve it to many clients at once."""
