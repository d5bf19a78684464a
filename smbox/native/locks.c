/* Byte locks of the lock file, for readers and writers: open file description locks, which the
 * kernel releases when the file is closed. And the fence for processes that take no lock. */
#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <fcntl.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37
#endif

static int set_lock(i64 locks, const struct region *region, u64 stripe, short type) {
    struct flock request = {0};
    request.l_type = type;
    request.l_whence = SEEK_SET;
    request.l_start = (off_t)(region->lock + stripe * region->stripe_nbytes);
    request.l_len = 1;
    int failed;
    do
        failed = fcntl((int)locks, F_OFD_SETLK, &request);
    while (failed && errno == EINTR);
    return failed ? errno : 0;
}

/* SETLK, not SETLKW: a wait in C would delay Ctrl-C. */
enum result smbox_lock(i64 locks, const struct region *region, u64 stripe) {
    int error = set_lock(locks, region, stripe, F_WRLCK);
    if (error)
        return error == EAGAIN || error == EACCES ? BUSY : LOCK_FAILED;
    enum result result = DONE;
    if (is_freed(region))
        result = FREED;
    /* Acquire: pairs with the release store by which the last writer closed the stripe. */
    else if (load_acquire(&region->table[stripe].sequence) & SEQUENCE_OPEN)
        result = OPEN;
    if (result != DONE)
        smbox_unlock(locks, region, stripe);
    return result;
}

void smbox_unlock(i64 locks, const struct region *region, u64 stripe) {
    (void)set_lock(locks, region, stripe, F_UNLCK);
}

u64 smbox_fence(void) {
    atomic_thread_fence(memory_order_seq_cst);
    return DONE;
}
