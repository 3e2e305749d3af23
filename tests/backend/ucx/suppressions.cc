// What the sanitizers must not take for ours: UCX is not instrumented, so ThreadSanitizer sees its copies and
// not its locks, and LeakSanitizer sees what it keeps for the life of the process.
extern "C" {

const char* __tsan_default_suppressions();
const char* __lsan_default_suppressions();

// called_from_lib: only what these libraries call, not what calls them; they also unlock when the process
// forks or ends, called by libc. Nothing of ours is suppressed: the bytes that peers write, which only a
// socket orders, are stored by a function that ThreadSanitizer does not see (backend/ucx/peer_store.h), and
// everything around it is seen.
const char* __tsan_default_suppressions() {
  return "called_from_lib:libucp.so\ncalled_from_lib:libuct.so\ncalled_from_lib:libucs.so\n"
         "called_from_lib:libucm.so\nmutex:_dl_call_fini\nmutex:__run_prefork_handlers\n";
}
const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libuct.so\nleak:libucm.so\n";
}

}  // extern "C"
