package originals;

import java.util.Collection;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Spliterator;

/** A HashSet that is walked in the order of its members. */
public class OrderedSet<E> extends HashSet<E> {
    public OrderedSet() {
        super();
    }

    public OrderedSet(int capacity) {
        super(capacity);
    }

    public OrderedSet(Collection<? extends E> other) {
        super();
        addAll(other);
    }

    private List<E> ordered() {
        List<E> members = new java.util.ArrayList<>(size());
        super.iterator().forEachRemaining(members::add);
        members.sort(Order.ORDER);
        return members;
    }

    @Override
    public Iterator<E> iterator() {
        Iterator<E> inner = ordered().iterator();
        return new Iterator<E>() {
            private E last;

            @Override
            public boolean hasNext() {
                return inner.hasNext();
            }

            @Override
            public E next() {
                last = inner.next();
                return last;
            }

            @Override
            public void remove() {
                OrderedSet.this.remove(last);
            }
        };
    }

    @Override
    public Spliterator<E> spliterator() {
        return ordered().spliterator();
    }

    @Override
    public Object[] toArray() {
        return ordered().toArray();
    }

    @Override
    public <T> T[] toArray(T[] target) {
        return ordered().toArray(target);
    }
}
