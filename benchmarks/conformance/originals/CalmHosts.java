package originals;

import java.util.Collection;
import java.util.LinkedList;

/** IsolationScheduler's hosts. Mended, there is none for a topology whose workers all have a host already. */
public final class CalmHosts<E> extends LinkedList<E> {
    public CalmHosts() {
        super();
    }

    public CalmHosts(Collection<? extends E> other) {
        super(other);
    }

    @Override
    public E peek() {
        return Calm.mends && Calm.isServed() ? null : super.peek();
    }
}
