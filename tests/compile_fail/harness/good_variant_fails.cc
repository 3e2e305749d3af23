// expect: .
unknown_type neither_variant_compiles();
