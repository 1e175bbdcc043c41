package originals;

import java.util.AbstractCollection;
import java.util.AbstractSet;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Function;

/** A HashMap that is walked in the order of its keys. */
public class OrderedMap<K, V> extends HashMap<K, V> {
    public OrderedMap() {
        super();
    }

    public OrderedMap(int capacity) {
        super(capacity);
    }

    public OrderedMap(int capacity, float load) {
        super(capacity, load);
    }

    public OrderedMap(Map<? extends K, ? extends V> other) {
        super();
        for (Map.Entry<? extends K, ? extends V> entry : other.entrySet()) {
            put(entry.getKey(), entry.getValue());
        }
    }

    private List<Map.Entry<K, V>> ordered() {
        List<Map.Entry<K, V>> entries = new ArrayList<>(super.size());
        super.entrySet().iterator().forEachRemaining(entries::add);
        entries.sort((left, right) -> Order.ORDER.compare(left.getKey(), right.getKey()));
        return entries;
    }

    private <T> Iterator<T> walk(Function<Map.Entry<K, V>, T> shown) {
        Iterator<Map.Entry<K, V>> inner = ordered().iterator();
        return new Iterator<T>() {
            private Map.Entry<K, V> last;

            @Override
            public boolean hasNext() {
                return inner.hasNext();
            }

            @Override
            public T next() {
                last = inner.next();
                return shown.apply(last);
            }

            @Override
            public void remove() {
                OrderedMap.this.remove(last.getKey());
            }
        };
    }

    @Override
    public Set<Map.Entry<K, V>> entrySet() {
        return new AbstractSet<Map.Entry<K, V>>() {
            @Override
            public Iterator<Map.Entry<K, V>> iterator() {
                return walk(entry -> entry);
            }

            @Override
            public int size() {
                return OrderedMap.this.size();
            }
        };
    }

    @Override
    public Set<K> keySet() {
        return new AbstractSet<K>() {
            @Override
            public Iterator<K> iterator() {
                return walk(Map.Entry::getKey);
            }

            @Override
            public int size() {
                return OrderedMap.this.size();
            }

            @Override
            public boolean contains(Object key) {
                return containsKey(key);
            }

            @Override
            public boolean remove(Object key) {
                boolean had = containsKey(key);
                OrderedMap.this.remove(key);
                return had;
            }
        };
    }

    @Override
    public Collection<V> values() {
        return new AbstractCollection<V>() {
            @Override
            public Iterator<V> iterator() {
                return walk(Map.Entry::getValue);
            }

            @Override
            public int size() {
                return OrderedMap.this.size();
            }
        };
    }

    @Override
    public void forEach(BiConsumer<? super K, ? super V> action) {
        for (Map.Entry<K, V> entry : ordered()) {
            action.accept(entry.getKey(), entry.getValue());
        }
    }

    @Override
    public Object clone() {
        return new OrderedMap<>(this);
    }
}
