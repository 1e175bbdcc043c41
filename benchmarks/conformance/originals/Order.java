package originals;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;

/** The order in which ordered maps and sets are walked: topologies, components and nodes by id, executors by task. */
public final class Order implements Comparator<Object> {
    public static final Order ORDER = new Order();

    private Order() {
    }

    @Override
    public int compare(Object left, Object right) {
        if (left == null || right == null) {
            return left == right ? 0 : left == null ? -1 : 1;
        }
        if (left instanceof String && right instanceof String || left instanceof Number && right instanceof Number) {
            return plain(left, right);
        }
        List<Object> leftKey = keyOf(left);
        List<Object> rightKey = keyOf(right);
        for (int at = 0; at < Math.min(leftKey.size(), rightKey.size()); at++) {
            int order = compare(leftKey.get(at), rightKey.get(at));
            if (order != 0) {
                return order;
            }
        }
        return leftKey.size() - rightKey.size();
    }

    private static int plain(Object left, Object right) {
        if (left instanceof Number) {
            return Double.compare(((Number) left).doubleValue(), ((Number) right).doubleValue());
        }
        return ((String) left).compareTo((String) right);
    }

    static List<Object> keyOf(Object value) {
        switch (value.getClass().getSimpleName()) {
            case "WorkerSlot":
                return ask(value, "getNodeId", "getPort");
            case "ResourceWorkerSlot":
                return ask(value, "getHostname", "getPort", "getNodeId");
            case "ExecutorDetails":
                return ask(value, "getStartTask", "getEndTask");
            case "SharedMemory":
                return ask(value, "get_name");
            case "TopologyDetails": case "Component": case "RasNode": case "Node": case "SupervisorDetails": case "User":
                return ask(value, "getId");
            default:
                break;
        }
        if (value instanceof Collection) {
            List<Object> members = new ArrayList<>((Collection<?>) value);
            Collections.sort(members, ORDER);
            return members;
        }
        return List.of(value.toString());
    }

    private static List<Object> ask(Object value, String... getters) {
        List<Object> answers = new ArrayList<>();
        for (String getter : getters) {
            try {
                Method method = value.getClass().getMethod(getter);
                method.setAccessible(true);
                answers.add(method.invoke(value));
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }
        return answers;
    }

    static <T> List<T> sorted(Collection<T> members) {
        List<T> list = new ArrayList<>(members.size());
        members.iterator().forEachRemaining(list::add);
        list.sort(ORDER);
        return list;
    }
}
