package originals;

import java.util.Collection;
import java.util.Iterator;
import java.util.List;

/** IsolationScheduler's sets. Mended, an empty one yields an empty worker, where the original's iterator raises. */
public final class CalmSet<E> extends OrderedSet<E> {
    public CalmSet() {
        super();
    }

    public CalmSet(Collection<? extends E> other) {
        super(other);
    }

    @Override
    @SuppressWarnings("unchecked")
    public Iterator<E> iterator() {
        if (!Calm.mends || !isEmpty()) {
            return super.iterator();
        }
        Iterator<E> one = List.of((E) new OrderedSet<Object>()).iterator();
        return new Iterator<E>() {
            @Override
            public boolean hasNext() {
                return false;
            }

            @Override
            public E next() {
                return one.next();
            }
        };
    }
}
