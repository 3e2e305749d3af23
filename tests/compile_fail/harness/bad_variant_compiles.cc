// expect: .
int both_variants_compile();
