// expect: an impossible message
#ifdef ASHLAR_SHOULD_FAIL
unknown_type name();
#endif
