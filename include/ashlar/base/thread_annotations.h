// Names for clang's thread-safety attributes; they vanish under other compilers.
#pragma once

#if defined(__clang__)
#define ASHLAR_ATTRIBUTE(x) __attribute__((x))
#else
#define ASHLAR_ATTRIBUTE(x)
#endif

#define ASHLAR_CAPABILITY(name) ASHLAR_ATTRIBUTE(capability(name))
#define ASHLAR_SCOPED_CAPABILITY ASHLAR_ATTRIBUTE(scoped_lockable)
#define ASHLAR_GUARDED_BY(mutex) ASHLAR_ATTRIBUTE(guarded_by(mutex))
#define ASHLAR_PT_GUARDED_BY(mutex) ASHLAR_ATTRIBUTE(pt_guarded_by(mutex))
#define ASHLAR_REQUIRES(...) ASHLAR_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define ASHLAR_EXCLUDES(...) ASHLAR_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ASHLAR_ACQUIRE(...) ASHLAR_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ASHLAR_TRY_ACQUIRE(...) ASHLAR_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define ASHLAR_RELEASE(...) ASHLAR_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASHLAR_ACQUIRED_AFTER(...) ASHLAR_ATTRIBUTE(acquired_after(__VA_ARGS__))
#define ASHLAR_RETURN_CAPABILITY(x) ASHLAR_ATTRIBUTE(lock_returned(x))
#define ASHLAR_NO_THREAD_SAFETY_ANALYSIS ASHLAR_ATTRIBUTE(no_thread_safety_analysis)
