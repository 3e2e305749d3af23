namespace ashlar::testing {}
