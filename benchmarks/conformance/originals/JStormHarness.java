package originals;

import backtype.storm.generated.Bolt;
import backtype.storm.generated.ComponentCommon;
import backtype.storm.generated.ComponentObject;
import backtype.storm.generated.GlobalStreamId;
import backtype.storm.generated.Grouping;
import backtype.storm.generated.NullStruct;
import backtype.storm.generated.SpoutSpec;
import backtype.storm.generated.StateSpoutSpec;
import backtype.storm.generated.StormTopology;
import com.alibaba.jstorm.daemon.supervisor.SupervisorInfo;
import com.alibaba.jstorm.schedule.Assignment;
import com.alibaba.jstorm.schedule.TopologyAssignContext;
import com.alibaba.jstorm.schedule.default_assign.DefaultTopologyScheduler;
import com.alibaba.jstorm.schedule.default_assign.ResourceWorkerSlot;
import com.alibaba.jstorm.utils.FailedAssignTopologyException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Reads problems (one a line) from standard input and answers them with JStorm's own topology scheduler. */
public final class JStormHarness {
    private static final long MOST_CPU_NANOS = 1_500_000_000L;
    private static boolean warm;

    private JStormHarness() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(Json.show(timed(object(Json.parse(line)))));
        }
        out.flush();
        System.exit(0);
    }

    /** The original can loop for ever (a set whose members' hash codes change while they are in it). */
    @SuppressWarnings({"deprecation", "removal"})
    private static Map<String, Object> timed(Map<String, Object> problem) throws InterruptedException {
        List<Map<String, Object>> found = new ArrayList<>();
        Thread thread = new Thread(() -> found.add(answer(problem)));
        thread.start();
        ThreadMXBean clock = ManagementFactory.getThreadMXBean();
        while (thread.isAlive() && clock.getThreadCpuTime(thread.getId()) < (warm ? MOST_CPU_NANOS : 20 * MOST_CPU_NANOS)) {
            thread.join(50); // its CPU time counts: a busy machine is no loop
        }
        warm = true;
        if (thread.isAlive()) {
            thread.stop();
            thread.join();
            return new TreeMap<>(Map.of("raised", "java.util.concurrent.TimeoutException: it loops for ever"));
        }
        return found.get(0);
    }

    private static Map<String, Object> answer(Map<String, Object> problem) {
        try {
            DefaultTopologyScheduler scheduler = new DefaultTopologyScheduler();
            scheduler.prepare(new HashMap<>());
            return new TreeMap<>(Map.of("workers", shown(scheduler.assignTasks(context(problem)))));
        } catch (FailedAssignTopologyException e) {
            return new TreeMap<>(Map.of("failed", String.valueOf(e.getMessage())));
        } catch (RuntimeException e) {
            e.printStackTrace();
            return new TreeMap<>(Map.of("raised", String.valueOf(e)));
        }
    }

    private static List<Object> shown(Set<ResourceWorkerSlot> workers) {
        List<ResourceWorkerSlot> sorted = new ArrayList<>(workers);
        sorted.sort(Order.ORDER);
        List<Object> found = new ArrayList<>();
        for (ResourceWorkerSlot each : sorted) {
            Map<String, Object> fields = new TreeMap<>();
            fields.put("node", each.getNodeId());
            fields.put("host", each.getHostname());
            fields.put("port", each.getPort());
            fields.put("tasks", each.getTasks() == null ? List.of() : new TreeSet<>(each.getTasks()));
            fields.put("memory_bytes", each.getMemSize());
            fields.put("cpu", each.getCpu());
            found.add(fields);
        }
        return found;
    }

    private static TopologyAssignContext context(Map<String, Object> problem) {
        Map<String, Object> topology = object(problem.get("topology"));
        Map<Integer, String> componentByTask = componentByTask(problem, list(topology.get("components")));
        Map<String, Object> conf = new HashMap<>(object(problem.get("conf")));
        conf.put("topology.name", topology.getOrDefault("name", "topology"));
        TopologyAssignContext context = new TopologyAssignContext();
        context.setTopologyId((String) topology.get("id"));
        context.setAssignType(List.of("NEW", "REBALANCE", "MONITOR").indexOf(problem.get("assign_type")));
        context.setIsReassign(Boolean.TRUE.equals(problem.get("reassign")));
        context.setStormConf(conf);
        context.setRawTopology(graph(list(topology.get("components"))));
        context.setTaskToComponent(componentByTask);
        context.setAllTaskIds(new OrderedSet<>(componentByTask.keySet()));
        context.setDeadTaskIds(tasks(problem.get("dead_tasks")));
        context.setUnstoppedTaskIds(tasks(problem.get("unstopped_tasks")));
        context.setCluster(supervisors(list(problem.get("supervisors"))));
        // A rebalance has a former assignment, be it one without workers.
        Object old = problem.get("old_workers");
        context.setOldAssignment(old == null ? null : old(list(old)));
        componentByTask.forEach((task, name) -> {
            if (name.equals("__topology_master")) {
                context.setTopologyMasterTaskId(task);
            }
        });
        return context;
    }

    private static Map<Integer, String> componentByTask(Map<String, Object> problem, List<Object> components) {
        Map<Integer, String> found = new TreeMap<>();
        if (problem.get("tasks") != null) {
            object(problem.get("tasks")).forEach((task, name) -> found.put(Integer.valueOf(task), (String) name));
            return found;
        }
        for (boolean spouts : new boolean[] {false, true}) {
            for (Object each : components) {
                if ("spout".equals(object(each).get("kind")) == spouts) {
                    for (int n = number(object(each).get("parallelism")); n > 0; n--) {
                        found.put(found.size() + 1, (String) object(each).get("id"));
                    }
                }
            }
        }
        return found;
    }

    private static StormTopology graph(List<Object> components) {
        Map<String, SpoutSpec> spouts = new OrderedMap<>();
        Map<String, Bolt> bolts = new OrderedMap<>();
        for (Object each : components) {
            Map<String, Object> fields = object(each);
            if ("system".equals(fields.get("kind"))) {
                continue;
            }
            ComponentCommon common = new ComponentCommon();
            common.set_inputs(inputs(list(fields.get("inputs"))));
            common.set_streams(new HashMap<>());
            common.set_parallelism_hint(number(fields.get("parallelism")));
            common.set_json_conf(Json.show(fields.getOrDefault("conf", Map.of())));
            ComponentObject object = ComponentObject.serialized_java(new byte[0]);
            if ("spout".equals(fields.get("kind"))) {
                spouts.put((String) fields.get("id"), new SpoutSpec(object, common));
            } else {
                bolts.put((String) fields.get("id"), new Bolt(object, common));
            }
        }
        return new StormTopology(spouts, bolts, new HashMap<String, StateSpoutSpec>());
    }

    private static Map<GlobalStreamId, Grouping> inputs(List<Object> wanted) {
        Map<GlobalStreamId, Grouping> found = new HashMap<>();
        for (Object each : wanted) {
            Map<String, Object> fields = object(each);
            found.put(new GlobalStreamId((String) fields.get("from"), (String) fields.getOrDefault("stream", "default")),
                Grouping.shuffle(new NullStruct()));
        }
        return found;
    }

    private static Map<String, SupervisorInfo> supervisors(List<Object> wanted) {
        Map<String, SupervisorInfo> found = new TreeMap<>();
        for (Object each : wanted) {
            Map<String, Object> fields = object(each);
            String id = (String) fields.get("id");
            SupervisorInfo info = new SupervisorInfo((String) fields.get("host"), id, tasks(fields.get("ports")), new HashMap<>());
            info.setAvailableWorkerPorts(tasks(fields.getOrDefault("available", fields.get("ports"))));
            found.put(id, info);
        }
        return found;
    }

    private static Assignment old(List<Object> wanted) {
        Set<ResourceWorkerSlot> workers = new OrderedSet<>();
        Map<String, String> hosts = new HashMap<>();
        for (Object each : wanted) {
            Map<String, Object> fields = object(each);
            ResourceWorkerSlot worker = new ResourceWorkerSlot((String) fields.get("node"), number(fields.get("port")));
            worker.setHostname((String) fields.get("host"));
            worker.setTasks(tasks(fields.get("tasks")));
            worker.setMemSize(((Number) fields.getOrDefault("memory_bytes", 0L)).longValue());
            worker.setCpu(number(fields.getOrDefault("cpu", 0L)));
            worker.setJvm((String) fields.get("jvm"));
            hosts.put(worker.getNodeId(), worker.getHostname());
            workers.add(worker);
        }
        return new Assignment("", workers, hosts, new HashMap<>());
    }

    private static Set<Integer> tasks(Object value) {
        Set<Integer> found = new OrderedSet<>();
        list(value).forEach(each -> found.add(number(each)));
        return found;
    }

    private static int number(Object value) {
        return ((Number) value).intValue();
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    private static List<Object> list(Object value) {
        return value == null ? List.of() : (List<Object>) value;
    }
}
