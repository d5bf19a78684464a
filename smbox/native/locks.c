/* Locks of stripes: a word of the stripe's row has the id of the lock's holder. A free stripe is locked
 * without a system call. A living holder locks a byte of the lock file, by which smbox/memory/locks.py
 * finds who is dead. And the fence for processes that take no lock. */
#include "native.h"

/* Acquire pairs with the release of the last holder. */
static int swap_holder(struct stripe *row, u64 from, u64 to) {
    return atomic_compare_exchange_strong_explicit(&row->holder, &from, to, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

u64 smbox_take(struct stripe *row, const u64 *holder, u64 from) {
    if (!*holder)
        return NOT_OWN;
    return swap_holder(row, from, *holder) ? DONE : BUSY;
}

u64 smbox_leave(struct stripe *row, const u64 *holder) {
    return *holder && swap_holder(row, *holder, 0) ? DONE : BUSY;
}

enum result smbox_lock(const u64 *holder, const struct region *region, u64 stripe) {
    struct stripe *row = &region->table[stripe];
    enum result result = (enum result)smbox_take(row, holder, 0);
    if (result != DONE)
        return result;
    if (is_freed(region))
        result = FREED;
    else if (load_relaxed(&row->sequence) & SEQUENCE_OPEN)
        result = OPEN;
    if (result != DONE)
        smbox_unlock(region, stripe);
    return result;
}

void smbox_unlock(const struct region *region, u64 stripe) {
    /* Release: the next holder sees all that this one has stored. */
    store_release(&region->table[stripe].holder, 0);
}

u64 smbox_fence(void) {
    atomic_thread_fence(memory_order_seq_cst);
    return DONE;
}
