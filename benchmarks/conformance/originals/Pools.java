package originals;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.storm.scheduler.multitenant.NodePool;

/** The pools that the MultitenantScheduler made in its last round, in the order in which it made them. */
final class Pools {
    static final List<NodePool> MADE = new ArrayList<>();

    private Pools() {
    }

    static int nodes(NodePool pool, Class<?> declaring, String fieldName) {
        try {
            Field field = declaring.getDeclaredField(fieldName);
            field.setAccessible(true);
            Object held = field.get(pool);
            Set<Object> nodes = new HashSet<>();
            if (held instanceof Map) {
                ((Map<?, ?>) held).values().forEach(each -> nodes.addAll((Collection<?>) each));
            } else {
                nodes.addAll((Collection<?>) held);
            }
            return nodes.size();
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }
}
