// A file that forgot to say what it expects.
int nothing_expected();
