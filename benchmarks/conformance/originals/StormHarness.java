package originals;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.storm.Config;
import org.apache.storm.DaemonConfig;
import org.apache.storm.generated.Bolt;
import org.apache.storm.generated.ComponentCommon;
import org.apache.storm.generated.ComponentObject;
import org.apache.storm.generated.GlobalStreamId;
import org.apache.storm.generated.Grouping;
import org.apache.storm.generated.NullStruct;
import org.apache.storm.generated.SharedMemory;
import org.apache.storm.generated.SpoutSpec;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.generated.StreamInfo;
import org.apache.storm.metric.StormMetricsRegistry;
import org.apache.storm.networktopography.DNSToSwitchMapping;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.DefaultScheduler;
import org.apache.storm.scheduler.EvenScheduler;
import org.apache.storm.scheduler.ExecutorDetails;
import org.apache.storm.scheduler.INimbus;
import org.apache.storm.scheduler.IScheduler;
import org.apache.storm.scheduler.IsolationScheduler;
import org.apache.storm.scheduler.SchedulerAssignment;
import org.apache.storm.scheduler.SchedulerAssignmentImpl;
import org.apache.storm.scheduler.SupervisorDetails;
import org.apache.storm.scheduler.Topologies;
import org.apache.storm.scheduler.TopologyDetails;
import org.apache.storm.scheduler.WorkerSlot;
import org.apache.storm.scheduler.blacklist.BlacklistScheduler;
import org.apache.storm.scheduler.multitenant.DefaultPool;
import org.apache.storm.scheduler.multitenant.FreePool;
import org.apache.storm.scheduler.multitenant.IsolatedPool;
import org.apache.storm.scheduler.multitenant.MultitenantScheduler;
import org.apache.storm.scheduler.multitenant.NodePool;
import org.apache.storm.scheduler.resource.ResourceAwareScheduler;
import org.apache.storm.scheduler.resource.normalization.NormalizedResources;
import org.apache.storm.scheduler.resource.normalization.ResourceMetrics;
import org.apache.storm.utils.Time;
import org.apache.storm.utils.Utils;

/** Reads problems (one a line) from standard input and answers them with Apache Storm's own schedulers. */
public final class StormHarness {
    private StormHarness() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        // The clock is held: topologies are ranked by uptime, and a second that passes within a round changes the ranks.
        new Time.SimulatedTime();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(Json.show(answer(object(Json.parse(line)))));
        }
        out.flush();
        System.exit(0);
    }

    private static Map<String, Object> answer(Map<String, Object> problem) {
        IScheduler scheduler = null;
        NormalizedResources.resetResourceNames(); // else the names of former problems count as declared
        try {
            Map<String, Object> conf = Utils.readDefaultConfig();
            conf.putAll(object(problem.getOrDefault("conf", Map.of())));
            conf.put(DaemonConfig.SCHEDULING_TIMEOUT_SECONDS_PER_TOPOLOGY, 1_000_000);
            scheduler = made((String) problem.get("scheduler"), (String) problem.getOrDefault("inner", "default"));
            scheduler.prepare(conf, new StormMetricsRegistry());
            List<Object> rounds = list(problem.get("rounds"));
            if (rounds.isEmpty()) {
                return round(problem, conf, scheduler);
            }
            List<Object> answers = new ArrayList<>();
            Map<String, Object> former = new HashMap<>(problem);
            for (Object each : rounds) {
                former.putAll(object(each));
                answers.add(round(former, conf, scheduler));
            }
            return new TreeMap<>(Map.of("rounds", answers));
        } catch (RuntimeException e) {
            e.printStackTrace();
            return new TreeMap<>(Map.of("raised", String.valueOf(e)));
        } finally {
            if (scheduler != null) {
                scheduler.cleanup();
            }
        }
    }

    private static IScheduler made(String name, String inner) {
        switch (name) {
            case "even":
                return new EvenScheduler();
            case "default":
                return new DefaultScheduler();
            case "isolation":
                return new Watched(new IsolationScheduler());
            case "multitenant":
                return new MultitenantScheduler();
            case "resource-aware":
                return new ResourceAwareScheduler();
            case "blacklist":
                IScheduler wrapped = made(inner, inner);
                return new BlacklistScheduler(wrapped instanceof Watched ? wrapped : new Watched(wrapped));
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static Map<String, Object> round(Map<String, Object> problem, Map<String, Object> conf, IScheduler scheduler) {
        Map<String, SupervisorDetails> supervisors = supervisors(problem);
        Topologies topologies = topologies(problem, conf);
        Cluster cluster = new Cluster(nimbus(), new ResourceMetrics(new StormMetricsRegistry()), supervisors,
            assignments(problem, topologies), topologies, conf);
        cluster.setNetworkTopography(racks(problem));
        cluster.setBlacklistedHosts(new HashSet<>(strings(problem.get("blacklisted_hosts"))));
        cluster.setGreyListedSupervisors(onHosts(supervisors, strings(problem.get("greylisted_hosts"))));
        Set<String> running = running(cluster);
        Calm.mends = Boolean.TRUE.equals(problem.get("mended"));
        Calm.begin(cluster, isolated(topologies, conf.get(DaemonConfig.ISOLATION_SCHEDULER_MACHINES)));
        Pools.MADE.clear();
        scheduler.schedule(topologies, cluster);
        return shown(Calm.cluster, topologies, scheduler, running);
    }

    static List<TopologyDetails> isolated(Topologies topologies, Object machines) {
        List<TopologyDetails> found = new ArrayList<>();
        for (TopologyDetails each : topologies) {
            if (machines instanceof Map && ((Map<?, ?>) machines).containsKey(each.getName())) {
                found.add(each);
            }
        }
        found.sort(Order.ORDER);
        return found;
    }

    private static Set<String> running(Cluster cluster) {
        Set<String> found = new TreeSet<>();
        cluster.getAssignments().forEach((id, each) -> {
            if (!each.getSlots().isEmpty()) {
                found.add(id);
            }
        });
        return found;
    }

    private static Map<String, Object> shown(Cluster cluster, Topologies topologies, IScheduler scheduler, Set<String> running) {
        Map<String, Object> assignments = new TreeMap<>();
        Map<String, Object> status = new TreeMap<>();
        for (TopologyDetails topology : topologies) {
            SchedulerAssignment placed = cluster.getAssignmentById(topology.getId());
            assignments.put(topology.getId(), placed == null ? List.of() : rows(placed));
            status.put(topology.getId(), String.valueOf(cluster.getStatus(topology.getId())));
        }
        Map<String, Object> found = new TreeMap<>(Map.of("assignments", assignments, "status", status));
        if (scheduler instanceof BlacklistScheduler) {
            found.put("blacklisted_hosts", Watched.blacklisted);
        }
        if (!Pools.MADE.isEmpty()) {
            found.put("pools", pools((Map<?, ?>) cluster.getConf().get(DaemonConfig.MULTITENANT_SCHEDULER_USER_POOLS)));
        }
        return found;
    }

    private static List<Object> rows(SchedulerAssignment placed) {
        Map<ExecutorDetails, WorkerSlot> sorted = new TreeMap<>(Order.ORDER);
        sorted.putAll(placed.getExecutorToSlot());
        List<Object> rows = new ArrayList<>();
        sorted.forEach((executor, slot) -> rows.add(new TreeMap<>(Map.of(
            "executor", List.of(executor.getStartTask(), executor.getEndTask()),
            "node", slot.getNodeId(), "port", slot.getPort()))));
        return rows;
    }

    private static Map<String, Object> pools(Map<?, ?> limits) {
        Map<String, Object> found = new TreeMap<>();
        Map<String, Object> isolated = new TreeMap<>();
        List<Object> users = new ArrayList<>();
        if (limits != null) {
            users.addAll(limits.keySet());
        }
        int user = 0;
        for (NodePool pool : Pools.MADE) {
            if (pool instanceof FreePool) {
                found.put("free", Pools.nodes(pool, FreePool.class, "nodes"));
            } else if (pool instanceof DefaultPool) {
                found.put("default", Pools.nodes(pool, DefaultPool.class, "nodes"));
            } else {
                isolated.put((String) users.get(user++), Pools.nodes(pool, IsolatedPool.class, "topologyIdToNodes"));
            }
        }
        found.put("isolated", isolated);
        return found;
    }

    private static Map<String, SupervisorDetails> supervisors(Map<String, Object> problem) {
        Map<String, Object> dead = object(problem.getOrDefault("dead_ports", Map.of()));
        Map<String, SupervisorDetails> found = new OrderedMap<>();
        for (Object each : list(problem.get("supervisors"))) {
            Map<String, Object> fields = object(each);
            String id = (String) fields.get("id");
            List<Number> ports = new ArrayList<>();
            for (Object port : list(fields.get("ports"))) {
                if (!list(dead.get(id)).contains(port)) {
                    ports.add((Number) port);
                }
            }
            Map<String, Double> resources = new HashMap<>();
            object(fields.getOrDefault("resources", Map.of()))
                .forEach((name, amount) -> resources.put(name, ((Number) amount).doubleValue()));
            SupervisorDetails made = new SupervisorDetails(id, (String) fields.get("host"), null, ports, resources);
            if (fields.get("uptime_secs") instanceof Number seconds) {
                setUptime(made, seconds.longValue());
            }
            found.put(id, made);
        }
        return found;
    }

    /** Gives a supervisor its uptime, by which Storm 3 tells stable ones; 2.x has no such field. */
    private static void setUptime(SupervisorDetails of, long seconds) {
        try {
            java.lang.reflect.Field field = SupervisorDetails.class.getDeclaredField("uptimeSecs");
            field.setAccessible(true);
            field.setLong(of, seconds);
        } catch (NoSuchFieldException ignored) {
            return;
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Map<String, List<String>> racks(Map<String, Object> problem) {
        Map<String, List<String>> found = new OrderedMap<>();
        Set<String> seen = new HashSet<>();
        Map<String, Object> ordered = new TreeMap<>();
        list(problem.get("supervisors")).forEach(each -> ordered.put((String) object(each).get("id"), each));
        for (Object each : ordered.values()) {
            String host = (String) object(each).get("host");
            Object rack = object(each).get("rack");
            if (seen.add(host)) {
                found.computeIfAbsent(rack == null ? DNSToSwitchMapping.DEFAULT_RACK : (String) rack, r -> new ArrayList<>())
                    .add(host);
            }
        }
        return found;
    }

    private static Set<String> onHosts(Map<String, SupervisorDetails> supervisors, Collection<String> hosts) {
        Set<String> found = new OrderedSet<>();
        supervisors.forEach((id, each) -> {
            if (hosts.contains(each.getHost())) {
                found.add(id);
            }
        });
        return found;
    }

    private static Topologies topologies(Map<String, Object> problem, Map<String, Object> conf) {
        Map<String, TopologyDetails> found = new OrderedMap<>();
        int now = Time.currentTimeSecs();
        for (Object each : list(problem.get("topologies"))) {
            Map<String, Object> fields = object(each);
            Map<String, Object> own = new HashMap<>(conf);
            own.putAll(object(fields.getOrDefault("conf", Map.of())));
            own.put(Config.TOPOLOGY_NAME, fields.get("name"));
            Map<ExecutorDetails, String> executors = new OrderedMap<>();
            for (Object component : list(fields.get("components"))) {
                for (Object executor : list(object(component).get("executors"))) {
                    executors.put(executor(executor), (String) object(component).get("id"));
                }
            }
            int workers = ((Number) own.get(Config.TOPOLOGY_WORKERS)).intValue();
            int uptime = ((Number) fields.getOrDefault("uptime_secs", 0L)).intValue();
            String id = (String) fields.get("id");
            found.put(id, new TopologyDetails(id, own, graph(list(fields.get("components"))), workers, executors,
                now - uptime, (String) fields.getOrDefault("owner", "")));
        }
        return new Topologies(found);
    }

    private static StormTopology graph(List<Object> components) {
        Map<String, SpoutSpec> spouts = new OrderedMap<>();
        Map<String, Bolt> bolts = new OrderedMap<>();
        Map<String, Map<String, StreamInfo>> streams = streams(components);
        for (Object each : components) {
            Map<String, Object> fields = object(each);
            ComponentCommon common = new ComponentCommon();
            common.set_inputs(inputs(list(fields.get("inputs"))));
            common.set_streams(streams.get((String) fields.get("id")));
            common.set_parallelism_hint(list(fields.get("executors")).size());
            common.set_json_conf(Json.show(fields.getOrDefault("conf", Map.of())));
            ComponentObject object = ComponentObject.serialized_java(new byte[0]);
            if ("spout".equals(fields.get("kind"))) {
                spouts.put((String) fields.get("id"), new SpoutSpec(object, common));
            } else if ("bolt".equals(fields.get("kind"))) {
                bolts.put((String) fields.get("id"), new Bolt(object, common));
            }
        }
        StormTopology topology = new StormTopology(spouts, bolts, Collections.emptyMap());
        addSharedMemory(topology, components);
        return topology;
    }

    /** The streams of each component: the default one and those that others subscribe to, else the topology is not valid. */
    private static Map<String, Map<String, StreamInfo>> streams(List<Object> components) {
        Map<String, Map<String, StreamInfo>> found = new HashMap<>();
        for (Object each : components) {
            found.put((String) object(each).get("id"), new HashMap<>(Map.of("default", new StreamInfo(List.of("key"), false))));
        }
        for (Object each : components) {
            for (Object input : list(object(each).get("inputs"))) {
                Map<String, StreamInfo> declared = found.get((String) object(input).get("from"));
                if (declared != null) {
                    declared.put((String) object(input).getOrDefault("stream", "default"), new StreamInfo(List.of("key"), false));
                }
            }
        }
        return found;
    }

    /** What TopologyBuilder.addSharedMemory does; regions are walked by name. */
    private static void addSharedMemory(StormTopology topology, List<Object> components) {
        Map<String, SharedMemory> regions = new OrderedMap<>();
        Map<String, Set<String>> namesByComponent = new OrderedMap<>();
        for (Object each : components) {
            Map<String, Object> fields = object(each);
            Map<String, Object> wanted = object(object(fields.getOrDefault("conf", Map.of()))
                .getOrDefault("topology.component.shared.memory", Map.of()));
            wanted.forEach((name, amounts) -> {
                SharedMemory region = new SharedMemory(name);
                region.set_on_heap(amount(amounts, "on_heap"));
                region.set_off_heap_worker(amount(amounts, "off_heap_worker"));
                region.set_off_heap_node(amount(amounts, "off_heap_node"));
                regions.put(name, region);
                namesByComponent.computeIfAbsent((String) fields.get("id"), id -> new OrderedSet<>()).add(name);
            });
        }
        if (!regions.isEmpty()) {
            topology.set_component_to_shared_memory(namesByComponent);
            topology.set_shared_memory(regions);
        }
    }

    private static double amount(Object amounts, String kind) {
        return ((Number) object(amounts).getOrDefault(kind, 0.0)).doubleValue();
    }

    private static Map<GlobalStreamId, Grouping> inputs(List<Object> wanted) {
        Map<GlobalStreamId, Grouping> found = new HashMap<>();
        for (Object each : wanted) {
            Map<String, Object> fields = object(each);
            GlobalStreamId from = new GlobalStreamId((String) fields.get("from"), (String) fields.getOrDefault("stream", "default"));
            found.put(from, grouping((String) fields.getOrDefault("grouping", "shuffle")));
        }
        return found;
    }

    private static Grouping grouping(String word) {
        switch (word) {
            case "shuffle":
                return Grouping.shuffle(new NullStruct());
            case "local_or_shuffle":
                return Grouping.local_or_shuffle(new NullStruct());
            case "all":
                return Grouping.all(new NullStruct());
            default:
                return Grouping.fields(List.of("key"));
        }
    }

    private static Map<String, SchedulerAssignment> assignments(Map<String, Object> problem, Topologies topologies) {
        Map<String, SchedulerAssignment> found = new OrderedMap<>();
        object(problem.getOrDefault("assignments", Map.of())).forEach((id, rows) -> {
            Map<ExecutorDetails, WorkerSlot> placed = new OrderedMap<>();
            for (Object row : list(rows)) {
                Map<String, Object> fields = object(row);
                placed.put(executor(fields.get("executor")),
                    new WorkerSlot((String) fields.get("node"), (Number) fields.get("port")));
            }
            found.put(id, new SchedulerAssignmentImpl(id, placed, null, null));
        });
        return found;
    }

    private static ExecutorDetails executor(Object tasks) {
        List<Object> both = list(tasks);
        return new ExecutorDetails(((Number) both.get(0)).intValue(), ((Number) both.get(1)).intValue());
    }

    private static INimbus nimbus() {
        return new INimbus() {
            @Override
            public void prepare(Map<String, Object> conf, String dir) {
            }

            @Override
            public Collection<WorkerSlot> allSlotsAvailableForScheduling(
                Collection<SupervisorDetails> supervisors, Topologies topologies, Set<String> missing) {
                return Collections.emptySet();
            }

            @Override
            public void assignSlots(Topologies topologies, Map<String, Collection<WorkerSlot>> slots) {
            }

            @Override
            public String getHostName(Map<String, SupervisorDetails> supervisors, String node) {
                SupervisorDetails found = supervisors.get(node);
                return found == null ? null : found.getHost();
            }

            @Override
            public IScheduler getForcedScheduler() {
                return null;
            }
        };
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> object(Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    private static List<Object> list(Object value) {
        return value == null ? List.of() : (List<Object>) value;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static List<String> strings(Object value) {
        return (List) list(value);
    }
}
