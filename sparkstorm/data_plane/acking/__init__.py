"""Message tracking (Storm's acker): ledgers of open tuple trees, and a spout's pending messages.
PURE.

The algorithm, in `ledger.Ledger.apply`:

    A tuple tree has a root id. Each tuple that crosses to another task is an edge with a random 64-bit id.
    init(root, value, spout task)   the spout emitted: value is the XOR of the edges it made
    ack(root, value)                a bolt is done with an input: value is the XOR of that edge and of the edges it made
    fail(root)                      a bolt gave up
    The ledger keeps one value per root and XORs every message into it. Each edge comes twice, once made and once
    consumed, so the value is 0 when all are consumed (a wrong 0 has a chance of 2**-64).
    After a whole batch is applied, each touched root whose spout task is known:
        value 0        -> acked, and forgotten
        a fail seen    -> failed, and forgotten
    An ack may come before its init. A root without an init ages out after three rotations.

Edges that begin and end inside one epoch never come here. All messages are combined per root, as
columns.

A tree, or a batch of trees, has a root id: `tree_batches.TreeBatches` keeps a ledger with batches.
"""
